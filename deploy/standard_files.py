"""Opens the standard files that are closed, since a socket would get their numbers otherwise.

libuv ends a process that closes a socket with such a number, and what is printed would be sent
over it. A cron job or a supervisor may close them.
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
