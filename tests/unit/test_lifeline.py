"""A process ends with its launcher, and says so if it was never given one."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from discovery.lifeline import ORPHANED, end_with_supervisor

ROOT = Path(__file__).parents[2]
CLOSED = "987"  # a descriptor that no process here opens
PATIENCE_S = 120
WAIT = """
import sys, threading
from discovery.lifeline import end_with_supervisor
end_with_supervisor(int(sys.argv[1]))
print("tied", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(
    "command",
    [["proxy"], ["proxy", "--workers", "2"], ["decode_node", "--model", "deploy/demo/model"]],
)
def test_a_launcher_that_is_not_there_is_told_in_one_line(command: list[str]) -> None:
    words = [*command, "--port", "0", "--supervisor-fd", CLOSED]
    ran = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
    )
    said = f"--supervisor-fd {CLOSED} is no open socket: Bad file descriptor\n"
    assert (ran.returncode, ran.stderr) == (1, said)


def test_a_launcher_to_whom_nothing_can_be_reported_is_refused() -> None:
    there, here = os.pipe()
    with (
        open(there, "rb"),
        open(here, "wb"),
        pytest.raises(SystemExit, match="is no open socket: Socket operation on non-"),
    ):
        end_with_supervisor(there)


def test_a_process_ends_with_its_launcher() -> None:
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-c", WAIT, str(theirs.fileno())]
    with subprocess.Popen(
        words, pass_fds=[theirs.fileno()], cwd=ROOT, stdout=PIPE, stderr=PIPE
    ) as process:
        with ours, theirs:
            assert process.stdout is not None
            assert process.stdout.readline() == b"tied\n"
        try:
            _, told = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, told) == (ORPHANED, b"")
