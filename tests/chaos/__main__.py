"""`python -m tests.chaos`: says what came of it, and exits with 1 where that is not good."""

import argparse
from pathlib import Path

from tests.chaos.chaos import Chaos
from tests.soak.playing import play


def main() -> None:
    """Read what to do, and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long clients come")
    parser.add_argument("--rate", type=float, default=3.0, help="clients per second")
    play(parser, _chaos)


def _chaos(model: Path, asked: argparse.Namespace) -> Chaos:
    return Chaos(model, asked.seed, asked.seconds, asked.rate)


if __name__ == "__main__":
    main()
