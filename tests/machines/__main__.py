"""`python -m tests.machines`: says what came of it, and exits with 1 where that is not good."""

import argparse
from pathlib import Path

from tests.machines.lan import go_inside
from tests.machines.outages import Outages
from tests.soak.playing import play


def main() -> None:
    """Go where machines can be made, read what to do, and do it."""
    go_inside("tests.machines")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long clients come")
    parser.add_argument("--rate", type=float, default=3.0, help="clients per second")
    parser.add_argument("--connector", default="nixl", choices=("nixl", "tcp"))
    parser.add_argument("--away", type=float, default=22.0, help="the proxy's machine, in s")
    play(parser, _outages)


def _outages(model: Path, asked: argparse.Namespace) -> Outages:
    return Outages(model, asked.seed, asked.seconds, asked.rate, asked.connector, asked.away)


if __name__ == "__main__":
    main()
