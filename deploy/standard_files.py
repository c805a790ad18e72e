"""Opens the standard files that are closed, and prints to one that nobody may read any more.

A socket would get the number of one that is closed: libuv ends a process that closes such a
socket, and what is printed would be sent over it. A cron job or a supervisor may close them.
"""

import os
import sys
from pathlib import Path

NUMBERS = range(3)


def open_standard_files() -> None:
    """Nothing is read from them, and what is written there is lost."""
    for number in NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115  for good
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115


def say(text: str, *, needed: bool = True) -> None:
    """Print at once, even into a pipe.

    If that fails, raises SystemExit, without a word if the reader has left; text that is not
    `needed` is lost, and what follows it, unless there was only no room for now. Buffered
    output would otherwise be flushed again when Python ends, and change the exit code.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if not needed and isinstance(error, BlockingIOError):
            return
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  for good
        if needed:
            left = isinstance(error, BrokenPipeError)
            told = 1 if left else f"standard output: {error.strerror}"
            raise SystemExit(told) from error
