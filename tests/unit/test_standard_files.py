"""Standard files that are closed at the start are not missed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, subprocess, sys
from deploy.standard_files import open_standard_files
open_standard_files()
print("said", flush=True)
print("said", file=sys.stderr, flush=True)
assert os.read(0, 1) == b""
assert os.open(os.devnull, os.O_RDONLY) > 2
child = "import os; [os.fstat(one) for one in range(3)]"
subprocess.run([sys.executable, "-c", child], check=True)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&- </dev/null", "<&- >&- 2>&-"])
def test_they_are_open_then_and_for_children_too(closed: str) -> None:
    """Where a socket got such a number, libuv ended the process that closed it."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
