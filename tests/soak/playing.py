"""What `python -m tests.soak` and `tests.chaos` have in common: from flags to a verdict."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tests.fakes.checkpoints import make_checkpoint
from tests.soak.verdict import Verdict


class Play(Protocol):
    """One run against a cluster of its own."""

    @property
    def lines(self) -> Sequence[str]:
        """All that its processes have printed."""

    async def run(self) -> Verdict:
        """To its end."""


def play(
    parser: argparse.ArgumentParser, make: Callable[[Path, argparse.Namespace], Play]
) -> None:
    """Exits with 1 where it is not good. `make` gets the model's folder and the flags."""
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--family", default="llama", help="of the tiny model that answers")
    parser.add_argument("--log", type=Path, help="where to keep what all processes printed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = make(make_checkpoint(Path(folder) / "tiny", asked.family), asked)
        verdict = asyncio.run(run.run())
    if asked.log:
        asked.log.write_text("\n".join(run.lines) + "\n")
    sys.stdout.write(f"seed {asked.seed}: {verdict.show()}\n")
    sys.exit(0 if verdict.is_good else 1)
