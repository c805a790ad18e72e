"""One answer of an endpoint: its events as they came, and when each of its tokens arrived."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DATA = b"data:"
DONE = b"[DONE]"
SHOWN = 500  # characters of what an endpoint said
Event = Mapping[str, Any]


class WrongAnswer(RuntimeError):
    """An answer other than requested: the measurement is void."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Times of its tokens; stages as the endpoint reports them."""

    times: Sequence[float]
    stages: Sequence[tuple[str, float]]


def payload(line: bytes) -> bytes | None:
    """The event in a line of a stream; None for comments, empty lines and the end."""
    data = line.removeprefix(DATA).strip()
    return data if line.startswith(DATA) and data != DONE else None


def shortened(text: str) -> str:
    """In one line, and without the rest of a page."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[:SHOWN] + "..."


def read_answer(frames: Sequence[tuple[float, bytes]], asked: int) -> Answer:
    """Raises WrongAnswer unless the endpoint says that these are as many tokens as asked for.

    An endpoint need not say which event has which tokens. Those that no event tells of came
    with the last.
    """
    if not frames:
        raise WrongAnswer("an answer without events, where a stream was asked for")
    events = [(when, _event(data)) for when, data in frames]
    usage = next((event["usage"] for _, event in reversed(events) if event.get("usage")), None)
    if usage is None:
        raise WrongAnswer("a stream without usage, although stream_options asked for it")
    if not isinstance(usage, dict) or usage.get("completion_tokens") != asked:
        raise WrongAnswer(shortened(f"{usage} instead of {asked} tokens"))
    times = _times(events)
    if not times:
        raise WrongAnswer("a stream without tokens")
    _, end = events[-1]
    stages = [(one["stage"], one["seconds"]) for one in _stages(end)]
    return Answer(times + times[-1:] * (asked - len(times)), stages)


def _event(data: bytes) -> Event:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict) or event.get("error"):
        raise WrongAnswer(shortened(f"an event of {data.decode(errors='replace')}"))
    return event


def _stages(event: Event) -> Sequence[Event]:
    stages: Sequence[Event] = (event.get("pdserve") or {}).get("stages", ())
    return stages


def _times(events: Sequence[tuple[float, Event]]) -> list[float]:
    """By token ids; or by text, or else by choices, if the endpoint does not give them."""
    choices = [(when, one) for when, event in events for one in event.get("choices") or ()]
    if any(one.get("token_ids") for _, one in choices):
        return [when for when, one in choices for _ in one.get("token_ids") or ()]
    return [when for when, one in choices if one.get("text")] or [when for when, _ in choices]
