"""`python -m tests.machines`: says what came of it, and exits with 1 where that is not good."""

import argparse
import os
import sys
from pathlib import Path

from tests.machines.lan import why_not, within
from tests.machines.outages import Outages
from tests.soak.playing import play

INSIDE = "PDSERVE_TESTS_INSIDE_LAN"


def main() -> None:
    """Go where machines can be made, read what to do, and do it."""
    if INSIDE not in os.environ:
        if why := why_not():
            sys.exit(f"this system makes no networks: {why}")
        command = within([sys.executable, "-m", "tests.machines", *sys.argv[1:]])
        os.execvpe(command[0], command, os.environ | {INSIDE: "1"})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long clients come")
    parser.add_argument("--rate", type=float, default=3.0, help="clients per second")
    parser.add_argument("--connector", default="nixl", choices=("nixl", "tcp"))
    play(parser, _outages)


def _outages(model: Path, asked: argparse.Namespace) -> Outages:
    return Outages(model, asked.seed, asked.seconds, asked.rate, asked.connector)


if __name__ == "__main__":
    main()
