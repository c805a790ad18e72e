"""Kernels that a CPU with tiles (AMX) leaves to oneDNN are tested there, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

OTHERS = "AVX512_CORE_BF16"  # what oneDNN may use: all but tiles
FILES = "test_kernels.py", "test_replayed_steps.py"
MOST_S = 300


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="this CPU has no tiles")
def test_they_say_the_same_where_onednn_packs_for_them() -> None:
    files = [str(Path(__file__).with_name(name)) for name in FILES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *files],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": OTHERS},
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
