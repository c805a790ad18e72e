"""Bodies of messages that mean no good: each is answered, in its form, and nothing else comes
of it.
"""

import asyncio
import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.http import Client, Json
from tests.fakes.messages import (
    CALL,
    CODEC,
    COUNT,
    PATH,
    WEATHER,
    checked,
    events_of,
    message_of,
    refused,
)
from tests.fakes.text import saying, served

PATIENCE_S = 60
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        [
            *("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"),
            *("user", "assistant", "system", "any", "tool", "none", "disabled", "weather"),
            *("pdserve:", "pdserve:/w==", "x-anthropic-billing-header", "{{ 1 / 0 }}", "\x00"),
        ]
    ),
)
NAMES = st.sampled_from(
    [
        *("type", "role", "content", "text", "id", "tool_use_id", "name", "input", "source"),
        *("thinking", "signature", "is_error", "cache_control", "input_schema", "properties"),
    ]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
BODY: Json = {
    "model": "tiny",
    "max_tokens": 50,
    "stream": False,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "pdserve"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "rain"}],
                    "is_error": True,
                },
                {"type": "text", "text": "so?"},
            ],
        },
        {"role": "system", "content": "be short"},
    ],
    "tools": [WEATHER],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "max"},
    "stop_sequences": ["🦊"],
    "metadata": {"user_id": "u"},
    "context_management": {"edits": []},
}


def places_of(value: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [p for key, one in value.items() for p in places_of(one, (*path, key))]
    elif isinstance(value, list):
        found += [p for key, one in enumerate(value) for p in places_of(one, (*path, key))]
    return found


PLACES = places_of(BODY)


def spoilt(changes: list[tuple[tuple[Any, ...], Any]], *, gone: bool) -> Json:
    """The body with other things at these places, as far as they are there; the last one is
    taken out where it is to be gone.
    """
    body = copy.deepcopy(BODY)
    for number, (path, value) in enumerate(changes, 1):
        within: Any = body
        for step in path[:-1]:
            within = _at(within, step)
        if not _has(within, path[-1]):
            continue
        if gone and number == len(changes):
            del within[path[-1]]
        else:
            within[path[-1]] = value
    return body


def _has(value: Json, step: Any) -> bool:  # noqa: ANN401
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def _at(value: Json, step: Any) -> Json:  # noqa: ANN401
    return value[step] if _has(value, step) else None


async def answered(path: str, data: bytes) -> int:
    """The status; an answer has its form, whatever it is."""
    client = Client(saying(f"Hm. {CALL}", CODEC), served(CODEC, context=4_000))
    async with asyncio.timeout(PATIENCE_S):
        said = await client.ask("POST", path, data, {"Content-Type": "application/json"})
    if said.status != 200:
        assert 400 <= said.status < 500, said.body
        assert len(refused(said.json)["message"]) <= 2_000
    elif path == COUNT:
        assert said.json["input_tokens"] > 0
    elif said.body.startswith("event: "):
        message_of(events_of(said.body))
    else:
        checked(said.json)
    return said.status


@pytest.mark.parametrize("path", [PATH, COUNT])
async def test_the_body_itself_is_a_good_one(path: str) -> None:
    for stream in (False, True):
        assert await answered(path, msgspec.json.encode({**BODY, "stream": stream})) == 200


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([PATH, COUNT]),
)
async def test_a_body_with_anything_anywhere_is_answered(
    changes: list[tuple[tuple[Any, ...], Any]], gone: bool, stream: bool, path: str
) -> None:
    body = {"stream": stream, **spoilt(changes, gone=gone)}
    await answered(path, msgspec.json.encode(body))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'"a"',
        b"{",
        b"\xff\xfe",
        b'{"messages": [' + b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 9}',
        b'{"messages": '
        + b'[{"role":"user","content":"a"}'
        + b', {"role":"user"}' * 50_000
        + b"]}",
        b'{"max_tokens": 1e400, "messages": [{"role": "user", "content": "a"}]}',
    ],
    ids=range(10),
)
async def test_what_is_no_body_is_refused(data: bytes) -> None:
    for path in (PATH, COUNT):
        assert await answered(path, data) == 400


async def test_many_blocks_are_read_at_once() -> None:
    blocks = [{"type": "text", "text": "a"}] * 20_000
    messages = [{"role": "user", "content": "a"}] * 20_000
    for said in ([{"role": "user", "content": blocks}], messages):
        assert await answered(COUNT, msgspec.json.encode({"messages": said})) == 200
