"""What holds for every test."""

import os
from pathlib import Path

from hypothesis import settings

settings.register_profile("pdserve", deadline=None)  # a busy machine is no failure
settings.load_profile("pdserve")

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
