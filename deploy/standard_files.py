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


def say(text: str) -> None:
    """Print at once; raises SystemExit if that fails, without a word if the reader has left."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  or Python tries again
        left = isinstance(error, BrokenPipeError)
        raise SystemExit(1 if left else f"standard output: {error.strerror}") from error
