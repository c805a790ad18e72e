"""What a worker process shares with the other workers of its proxy; there may be none."""

from collections.abc import Callable, Sequence
from typing import Protocol

METRICS, STATUS, TIMELINE = "metrics", "status", "timeline"
NODE, RATES = "node", "rates"

QueryHandler = Callable[[str], bytes | None]
"""From a query's subject to this worker's answer; None: it has no answer."""
UpdateHandler = Callable[[str, bytes | None], None]
"""Applies the new value of a shared name; None: it was deleted."""


class PeerWorkers(Protocol):
    """The other workers of this proxy, as one of them sees them.

    Shared entries and queries have a kind, which picks their handler: `update_handlers` apply
    what other workers have put, `query_handlers` answer what they ask. Handlers are registered
    before `run` begins.
    """

    update_handlers: dict[str, UpdateHandler]
    query_handlers: dict[str, QueryHandler]

    async def put(self, kind: str, name: str, value: bytes | None) -> None:
        """Set a shared value for all workers, including later ones; None deletes it.

        Returns once all live workers have applied it, or after a timeout. The caller applies it
        to itself.
        """

    async def ask(self, kind: str, subject: str = "") -> Sequence[bytes]:
        """The answers of all other workers; one that does not answer in time is omitted."""


class NoPeers:
    """Implements PeerWorkers for a proxy of one process."""

    def __init__(self) -> None:
        """Handlers may be registered, but nothing calls them."""
        self.update_handlers: dict[str, UpdateHandler] = {}
        self.query_handlers: dict[str, QueryHandler] = {}

    async def put(self, kind: str, name: str, value: bytes | None) -> None:
        """Does nothing: there is no other worker."""

    async def ask(self, kind: str, subject: str = "") -> Sequence[bytes]:
        """No answers: there is no other worker."""
        return ()
