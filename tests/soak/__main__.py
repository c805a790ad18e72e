"""`python -m tests.soak`: says what came of it, and exits with 1 where that is not good."""

import argparse
from pathlib import Path

from tests.soak.playing import play
from tests.soak.soak import Soak


def main() -> None:
    """Read what to do, and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="how many to ask")
    parser.add_argument("--at-once", type=int, default=16, help="how many are open")
    parser.add_argument("--seconds", type=float, default=300.0, help="when to give up")
    parser.add_argument("--ranks", type=int, default=1, help="of each node that is hurt")
    parser.add_argument("--wishes", action="store_true", help="ask for all that can be asked")
    parser.add_argument("--flags", default="", help="further ones of the nodes that are hurt")
    play(parser, _soak)


def _soak(model: Path, asked: argparse.Namespace) -> Soak:
    return Soak(
        *(model, asked.seed, asked.requests, asked.at_once, asked.seconds, asked.ranks),
        wishes=asked.wishes,
        flags=asked.flags.split(),
    )


if __name__ == "__main__":
    main()
