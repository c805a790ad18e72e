"""Starts requests a few at a time, as a node may find very many in its sockets at once.

One client's request may have thousands of choices, and what comes while the node's process has
no core to run on comes all at once. Each request does much before it first waits.
"""

from dataclasses import dataclass, field
from typing import Any

from api.starting import Starts
from node.signed_calls_only import Asgi


@dataclass(frozen=True, slots=True)
class StartedInTurn:
    """ASGI middleware: events of requests that run are sent between the starts of others."""

    inner: Asgi
    _starts: Starts = field(default_factory=Starts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
        """See ASGI."""
        await self._starts.wait()
        await self.inner(scope, receive, send)
