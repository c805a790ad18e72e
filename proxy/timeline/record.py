"""A request as it is kept: plain data, with what the cluster was called then. Pure."""

from collections.abc import Sequence

import msgspec

from proxy.timeline.exchange import Exchange
from proxy.timeline.marks import Mark
from proxy.timeline.story import Story

MOST_TOLD = 64  # choices whose marks are kept


class ChoiceRecord(msgspec.Struct, frozen=True, array_like=True):
    """One choice; see Story. `ending` is None while it runs."""

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
    marks: Sequence[Mark]
    unmarked: int


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One HTTP request; see Exchange."""

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


def record_of(exchange: Exchange) -> Record:
    """What it has come to so far."""
    stories = exchange.stories
    first = stories[0].request.request_id if stories else ""
    return Record(
        exchange.request_id or first,
        exchange.endpoint,
        exchange.received,
        exchange.unix_s,
        exchange.status,
        exchange.ended,
        exchange.trace.context.trace_id if exchange.trace else None,
        exchange.tokenized,
        exchange.admitted,
        [_choice(story, told=index < MOST_TOLD) for index, story in enumerate(stories)],
    )


def _choice(story: Story, *, told: bool) -> ChoiceRecord:
    return ChoiceRecord(
        story.request.request_id,
        story.begun,
        story.first_at,
        story.last_at,
        story.ended_at,
        None if story.ended_at is None else story.ending,
        story.failure,
        len(story.request.prompt),
        story.cached_tokens,
        story.fetched_tokens,
        story.output_tokens,
        story.tries,
        story.moves,
        story.marks if told else (),
        story.unmarked if told else story.unmarked + len(story.marks),
    )
