"""What a proxy process asks of those beside it, of which there may be none."""

from collections.abc import Callable, Sequence
from typing import Protocol

METRICS, STATUS, TIMELINE = "metrics", "status", "timeline"
NODE, RATES = "node", "rates"

Answer = Callable[[str], bytes | None]
"""From a question's subject to what this process says to it; None: nothing."""
Adopt = Callable[[str, bytes | None], None]
"""Takes in what is written under a name now; None: it was taken away."""


class Siblings(Protocol):
    """The other workers, as one of them sees them.

    Everything that is shared is of a kind. `adopts` has who takes in what others have put,
    `answers` who says what others ask, both by kind; both are filled before work begins.
    """

    adopts: dict[str, Adopt]
    answers: dict[str, Answer]

    async def put(self, kind: str, name: str, value: bytes | None) -> None:
        """Write it for all workers, those that start later too; None takes it away.

        Returns when all that live have it, or after a while; the caller has it already.
        """

    async def ask(self, kind: str, subject: str = "") -> Sequence[bytes]:
        """What all others say to this; who is silent for too long is left out."""


class Alone:
    """Nobody is beside this process."""

    def __init__(self) -> None:
        """There is nobody to take anything in from."""
        self.adopts: dict[str, Adopt] = {}
        self.answers: dict[str, Answer] = {}

    async def put(self, kind: str, name: str, value: bytes | None) -> None:
        """Nobody else is to know."""

    async def ask(self, kind: str, subject: str = "") -> Sequence[bytes]:
        """Nobody says anything."""
        return ()
