"""The trace context of a request's calls to nodes. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from api.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class Trace:
    """`context` is the client's own, passed on unchanged, unless this proxy creates spans: then
    it is that of the request's `span`, and `new_id` makes the span id of each call.
    """

    context: TraceContext
    new_id: Callable[[], str] | None = None
    span: object = None  # an OpenTelemetry span; only spans.py looks inside

    def next_call(self) -> TraceContext:
        """The context to send with the next call."""
        if self.new_id is None:
            return self.context
        return replace(self.context, span_id=self.new_id())
