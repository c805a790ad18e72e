"""A request's timeline as it is stored: plain data, nodes by their addresses. Pure."""

from collections.abc import Sequence

import msgspec

from proxy.timeline.choice import ChoiceTimeline
from proxy.timeline.events import TimelineEvent
from proxy.timeline.exchange import HttpExchange

MAX_CHOICES_WITH_EVENTS = 64  # choices whose events are kept


class ChoiceRecord(msgspec.Struct, frozen=True, array_like=True):
    """See ChoiceTimeline; `ending` is None while the choice runs."""

    request_id: str
    begun: float
    first_at: float | None
    last_at: float | None
    ended_at: float | None
    ending: str | None
    reason: str | None
    prompt_tokens: int
    cached_tokens: int
    fetched_tokens: int
    output_tokens: int
    tries: int
    moves: int
    events: Sequence[TimelineEvent]
    dropped_events: int


class RequestRecord(msgspec.Struct, frozen=True, array_like=True):
    """See HttpExchange."""

    request_id: str
    endpoint: str
    received: float
    unix_s: float
    status: int | None
    ended: float | None
    trace_id: str | None
    tokenized: float | None
    admitted: float | None
    choices: Sequence[ChoiceRecord]


def record_of(exchange: HttpExchange) -> RequestRecord:
    """The state of the request now."""
    choices = exchange.choices
    first = choices[0].request.request_id if choices else ""
    return RequestRecord(
        exchange.request_id or first,
        exchange.endpoint,
        exchange.received,
        exchange.unix_s,
        exchange.status,
        exchange.ended,
        exchange.trace.context.trace_id if exchange.trace else None,
        exchange.tokenized,
        exchange.admitted,
        [
            _choice_record(timeline, with_events=index < MAX_CHOICES_WITH_EVENTS)
            for index, timeline in enumerate(choices)
        ],
    )


def _choice_record(timeline: ChoiceTimeline, *, with_events: bool) -> ChoiceRecord:
    return ChoiceRecord(
        timeline.request.request_id,
        timeline.begun,
        timeline.first_at,
        timeline.last_at,
        timeline.ended_at,
        None if timeline.ended_at is None else timeline.ending,
        timeline.failure,
        len(timeline.request.prompt),
        timeline.cached_tokens,
        timeline.fetched_tokens,
        timeline.output_tokens,
        timeline.tries,
        timeline.moves,
        timeline.events if with_events else (),
        timeline.dropped_events
        if with_events
        else timeline.dropped_events + len(timeline.events),
    )
