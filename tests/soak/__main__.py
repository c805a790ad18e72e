"""`python -m tests.soak`: says what came of it, and exits with 1 where that is not good."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.fakes.checkpoints import make_checkpoint
from tests.soak.soak import Soak


def main() -> None:
    """Read what to do, and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--requests", type=int, default=1000, help="how many to ask")
    parser.add_argument("--at-once", type=int, default=16, help="how many are open")
    parser.add_argument("--seconds", type=float, default=300.0, help="when to give up")
    parser.add_argument("--log", type=Path, help="where to keep what all processes printed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_checkpoint(Path(folder) / "tiny")
        soak = Soak(model, asked.seed, asked.requests, asked.at_once, asked.seconds)
        verdict = asyncio.run(soak.run())
    if asked.log:
        asked.log.write_text("\n".join(soak.lines) + "\n")
    sys.stdout.write(f"seed {asked.seed}: {verdict.show()}\n")
    sys.exit(0 if verdict.is_good else 1)


if __name__ == "__main__":
    main()
