"""`python -m tests.chaos`: says what came of it, and exits with 1 where that is not good."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.chaos.chaos import Chaos
from tests.fakes.checkpoints import make_checkpoint


def main() -> None:
    """Read what to do, and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long clients come")
    parser.add_argument("--rate", type=float, default=3.0, help="clients per second")
    parser.add_argument("--log", type=Path, help="where to keep what all processes printed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_checkpoint(Path(folder) / "tiny")
        chaos = Chaos(model, asked.seed, asked.seconds, asked.rate)
        verdict = asyncio.run(chaos.run())
    if asked.log:
        asked.log.write_text("\n".join(chaos.lines) + "\n")
    sys.stdout.write(f"seed {asked.seed}: {verdict.show()}\n")
    sys.exit(0 if verdict.is_good else 1)


if __name__ == "__main__":
    main()
