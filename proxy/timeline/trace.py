"""Where a request's calls to nodes stand in a trace. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from api.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class Trace:
    """`context` is the client's own, handed through, unless spans are made here: then it is
    the request's `span`, and `new_id` names one for each call.
    """

    context: TraceContext
    new_id: Callable[[], str] | None = None
    span: object = None  # whoever began it knows what it is

    def place(self) -> TraceContext:
        """Of the next call."""
        if self.new_id is None:
            return self.context
        return replace(self.context, span_id=self.new_id())
