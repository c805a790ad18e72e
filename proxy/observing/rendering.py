"""Renders timelines: as JSON for `/requests/{id}`, and as a `Server-Timing` header. Pure.

Seconds count from when the proxy had the request's headers.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from proxy.timeline.choice import ChoiceTimeline
from proxy.timeline.clock_alignment import LegTimeline, PlacedStage, leg_timelines
from proxy.timeline.events import (
    AttemptPlanned,
    LegEnded,
    LegFailed,
    LegOpened,
    PromptAccepted,
    RetryDecided,
    StageEnded,
    TicketReceived,
    TimelineEvent,
)
from proxy.timeline.exchange import HttpExchange
from proxy.timeline.record import ChoiceRecord, RequestRecord, record_of

Json = dict[str, Any]
MILLISECONDS = 1e3
DIGITS = 6  # of a second
COMMENT = b": pdserve-timing "


def timeline_json(record: RequestRecord) -> Json:
    """The whole timeline of a request."""
    since = record.received
    return {
        "request_id": record.request_id,
        "endpoint": record.endpoint,
        "state": "running" if record.ended is None else "done",
        "status": record.status,
        "received_unix_s": round(record.unix_s, DIGITS),
        "total_s": _after(since, record.ended),
        "trace_id": record.trace_id,
        "choices": [_choice(one, record) for one in record.choices],
    }


def timeline_sse_comment(exchange: HttpExchange) -> bytes:
    """The same as a comment of an event stream, which clients skip."""
    return COMMENT + msgspec.json.encode(timeline_json(record_of(exchange))) + b"\n\n"


def server_timing(exchange: HttpExchange, now: float) -> str:
    """One entry for each stage, in milliseconds; of several choices the longest one.

    https://www.w3.org/TR/server-timing/
    """
    durations = {name: ended - began for name, began, ended in exchange.steps()}
    for timeline in exchange.choices:
        for name, seconds in _durations(timeline, exchange.received):
            durations[name] = max(durations.get(name, 0.0), seconds)
    durations["total"] = now - exchange.received
    return ", ".join(
        f"{name};dur={seconds * MILLISECONDS:.3f}" for name, seconds in durations.items()
    )


def _durations(timeline: ChoiceTimeline, received: float) -> Iterator[tuple[str, float]]:
    yield from timeline.stages.items()
    if timeline.first_at is not None:
        yield "first", timeline.first_at - received


def _choice(record: ChoiceRecord, whole: RequestRecord) -> Json:
    since = whole.received
    tokenized = record.begun if whole.tokenized is None else whole.tokenized
    before = ("received", since), ("tokenized", tokenized), ("admitted", whole.admitted)
    after = (
        ("first_token", record.first_at),
        ("last_token", record.last_at),
        ("ended", record.ended_at),
    )
    events = [*_known(before, since), *_events(record.events, since), *_known(after, since)]
    # stable: events of the same moment stay in the order recorded
    events.sort(key=lambda event: event["at_s"])
    return {
        "request_id": record.request_id,
        "finish": record.ending,
        "reason": record.reason,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "fetched_tokens": record.fetched_tokens,
        "output_tokens": record.output_tokens,
        "tries": record.tries,
        "moves": record.moves,
        "events": events,
        "events_left_out": record.dropped_events,
    }


def _known(stamps: Iterable[tuple[str, float | None]], since: float) -> list[Json]:
    return [_event(name, _after(since, at)) for name, at in stamps if at is not None]


def _events(timeline: Sequence[TimelineEvent], since: float) -> list[Json]:
    """All events; a stage is placed at its end."""
    rendered = [
        _event_json(event, since) for event in timeline if not isinstance(event, StageEnded)
    ]
    return rendered + [
        event for leg in leg_timelines(timeline) for event in _stages(leg, since)
    ]


def _event_json(event: TimelineEvent, since: float) -> Json:
    at = _after(since, event.at)
    match event:
        case AttemptPlanned():
            return _planned(event, at)
        case LegOpened(node=node, kind=kind):
            return _event("leg", at, node=node, kind=kind)
        case TicketReceived(node=node):
            return _event("ticket", at, node=node)
        case PromptAccepted(node=node, cached_tokens=cached, fetched_tokens=fetched):
            return _event("prompt", at, node=node, cached_tokens=cached, fetched_tokens=fetched)
        case LegFailed(node=node, reason=reason):
            return _event("failed", at, node=node, reason=reason)
        case RetryDecided(node=node, cause=cause, reason=reason):
            return _event("retry", at, node=node, cause=cause, reason=reason)
        case LegEnded(node=node, taken=taken):
            return _event("taken" if taken else "closed", at, node=node)
    raise AssertionError(event)


def _planned(event: AttemptPlanned, at: float | None) -> Json:
    fields: Json = {"prefill": event.prefill, "decode": event.decode, "why": event.why}
    if event.predicted is not None:
        first_token_s, finish_s = (round(one, DIGITS) for one in event.predicted)
        fields |= {"foretold_first_token_s": first_token_s, "foretold_finish_s": finish_s}
    return _event("planned", at, **fields)


def _stages(leg: LegTimeline, since: float) -> Iterator[Json]:
    pulled = None
    for one in leg.placed():
        event = _stage(one, since)
        if one.stage.stage == "reserve":
            pulled = one.ended
        elif one.stage.stage == "transfer" and pulled is not None:
            event["pull_s"] = round(one.ended - pulled, DIGITS)
        yield event


def _stage(placed: PlacedStage, since: float) -> Json:
    stage = placed.stage
    event = _event(
        stage.stage,
        _after(since, placed.ended),
        node=stage.node,
        began_s=_after(since, placed.began),
        seconds=round(stage.seconds, DIGITS),
    )
    if stage.num_bytes:
        event["num_bytes"] = stage.num_bytes
        if stage.seconds:
            event["bytes_per_s"] = round(stage.num_bytes / stage.seconds)
    return event


def _event(name: str, at_s: float | None, **more: object) -> Json:
    return {"event": name, "at_s": at_s, **more}


def _after(since: float, at: float | None) -> float | None:
    return None if at is None else round(at - since, DIGITS)
