"""An answer that a vLLM node repeats from its beginning, since its grammar requires it. Pure.

A pdserve node is told which tokens were generated before. vLLM has no such field: it starts a
grammar where the prompt ends, and a retry that continued an answer would contain it twice.
"""

from dataclasses import dataclass

import msgspec

from api.generator import Event, TokenEvent
from engine.request import Request, TokenId
from proxy.errors import Cause, NodeFailed


@dataclass(slots=True)
class Replay:
    """`request` as one leg asks a node for it; `known` are the tokens that it will repeat."""

    node_id: str
    request: Request
    known: tuple[TokenId, ...] = ()
    _received: int = 0

    @classmethod
    def of(cls, node_id: str, request: Request) -> "Replay":
        """With a grammar the whole answer is asked for; without one nothing is repeated."""
        if request.sampling.grammar is None:
            return cls(node_id, request)
        whole = msgspec.structs.replace(request, generated=())
        return cls(node_id, whole, tuple(request.generated))

    def new_part(self, event: Event) -> Event | None:
        """The event without tokens that are known; None if nothing is left of it.

        Raises NodeFailed if the node generates others, or ends before all of them.
        """
        missing = self.known[self._received :]
        if not missing or not isinstance(event, TokenEvent):
            return event
        repeated = event.tokens[: len(missing)]
        self._received += len(repeated)
        ended_early = event.finish is not None and len(repeated) < len(missing)
        if repeated != missing[: len(repeated)] or ended_early:
            other = f"repeats {repeated}, given was {missing[: len(repeated) + 1]}"
            raise NodeFailed(self.node_id, other, Cause.DIVERGED)
        count = len(repeated)
        if len(event.tokens) == count and event.finish is None:
            return None
        rest = event.tokens[count:], event.finish, event.stop_reason, event.logprobs[count:]
        return TokenEvent(*rest)
