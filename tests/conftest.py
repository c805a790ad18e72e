"""What holds for every test."""

import os
from pathlib import Path

from hypothesis import settings

# a busy machine is no failure; what is tried is the same each time, or a run may fail by chance
settings.register_profile("pdserve", deadline=None, derandomize=True)
settings.register_profile("anew", deadline=None)
settings.load_profile("pdserve")

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
