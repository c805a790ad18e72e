"""Ctrl-C before the command runs ends it without a traceback."""

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
INTERRUPTED = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
READING = """
import os, signal, cyclopts
cyclopts.App.__call__ = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
"""
HEARING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
IGNORING = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
RUN = """
import signal
before = signal.getsignal(signal.SIGINT)
from deploy.entry import main
try:
    main("--version")
finally:
    assert signal.getsignal(signal.SIGINT) is before
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Its signals are those of a terminal, also where the tests run in the background."""
    return subprocess.run(
        [sys.executable, "-c", HEARING + code], capture_output=True, text=True, cwd=ROOT
    )


def test_ctrl_c_during_imports_ends_it_without_a_word() -> None:
    ran = python(INTERRUPTED + RUN)
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_while_settings_are_read_ends_it_without_a_word() -> None:
    ran = python(READING + RUN)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_the_command_itself_hears_ctrl_c_as_before() -> None:
    ran = python(RUN)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_process_that_is_to_ignore_it_does() -> None:
    ran = python(IGNORING + INTERRUPTED + RUN)
    assert (ran.returncode, ran.stderr) == (0, "")
