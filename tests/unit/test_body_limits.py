"""What is so much that to read it would hold up everybody else is refused, by its number."""

import asyncio
import gc
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from weakref import ref

import msgspec
import pytest

from api.bodies import read_chat, read_completion
from api.body_limits import (
    COUNTED_FROM,
    MOST_ALLOWED,
    MOST_BIASES,
    MOST_COMMAS,
    MOST_KEYS,
    MOST_LISTED,
    MOST_STOP_IDS,
    MOST_STRINGS,
    refuse_crowded,
)
from api.encoding import INLINE_SIZE, run_off_loop
from api.errors import BadRequest
from api.generate import decode_call
from api.node_sampling import MOST, decode_sampling
from api.text.tokenizing import LONG
from api.text_requests import LARGEST_SHAPES, MOST_CALLS
from api.threads import run_in_thread
from api.wire import LONGEST_ERROR, WireError
from engine.request import RequestId
from tests.fakes.asking import chat, complete
from tests.fakes.text import byte_level

ID = RequestId("r")
PATIENCE_S = 60
MOST_THREADS = 32  # of an event loop
KEYS = {
    "plain": b'"a":1',
    "space": b'"a" :1',
    "tab": b'"a"\t:1',
    "line": b'"a"\n:1',
    "return": b'"a"\r:1',
    "backslash": b'"\\\\":1',
    "quote": b'"\\"":1',
}


def body(part: bytes, count: int) -> bytes:
    """An object of so many parts, or a text's end; large enough to be counted."""
    return b"{" + b",".join([part] * count) + b"}" + b" " * COUNTED_FROM


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_keys_are_counted_however_they_are_written(key: bytes) -> None:
    refuse_crowded(body(key, MOST_KEYS))
    with pytest.raises(WireError, match="The body has more than 200000 keys"):
        refuse_crowded(body(key, MOST_KEYS + 1))


def test_colons_in_a_text_are_no_keys() -> None:
    text = 'it is 12:30: {"a":1, "b": ["c", {"d":2}]}\n' * (MOST_KEYS // 2)
    data = msgspec.json.encode({"prompt": text})
    assert read_completion(data).prompt == text


def test_commas_are_counted() -> None:
    refuse_crowded(body(b"1", MOST_COMMAS + 1))
    with pytest.raises(WireError, match="The body has more than 1500000 commas"):
        refuse_crowded(body(b"1", MOST_COMMAS + 2))


def test_such_a_body_is_refused_at_every_door() -> None:
    data = body(b'"a":1', MOST_KEYS + 1)
    for read in (read_chat, read_completion):
        with pytest.raises(BadRequest, match="keys"):
            read(data)
    with pytest.raises(WireError, match="keys"):
        decode_call(data, request_id=ID)


async def test_arguments_of_calls_are_json_too() -> None:
    arguments = body(b'"a":1', MOST_KEYS + 1).decode()
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(BadRequest, match="arguments of a tool call have more than 200000 keys"):
        await chat({"messages": said})


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("allowed_token_ids", MOST_ALLOWED),
        ("stop_token_ids", MOST_STOP_IDS),
        ("logit_bias", MOST_BIASES),
        ("bad_words", MOST_STRINGS),
        ("stop", MOST_STRINGS),
        ("guided_choice", MOST_LISTED),
    ],
)
def test_lists_of_a_body_have_limits(field: str, most: int) -> None:
    ids = field.endswith("ids")

    def ask(count: int) -> bytes:
        listed: object = [1 if ids else "a"] * count
        if field == "logit_bias":
            listed = dict.fromkeys(map(str, range(count)), 1)
        return msgspec.json.encode({"prompt": "a", field: listed})

    read_completion(ask(most))
    with pytest.raises(BadRequest, match=rf"of length <= {most}$") as refused:
        read_completion(ask(most + 1))
    assert refused.value.param == field


async def test_ways_of_structured_outputs_have_a_limit() -> None:
    asked = {"choice": ["a"] * (MOST_LISTED + 1)}
    with pytest.raises(BadRequest, match="length <= 10000") as refused:
        await complete({"structured_outputs": asked})
    assert refused.value.param == "structured_outputs.choice"


@pytest.mark.parametrize(("field", "most"), MOST.items())
def test_lists_of_a_node_call_have_limits(field: str, most: int) -> None:
    def ask(count: int) -> Mapping[str, object]:
        if field == "logit_bias":
            return {field: dict.fromkeys(map(str, range(count)), 1)}
        return {field: [[1] if field == "bad_words" else 1] * count}

    assert len(getattr(decode_sampling(ask(most), 0, ID), field)) == most
    with pytest.raises(WireError, match=f"{field} has more than {most} entries"):
        decode_sampling(ask(most + 1), 0, ID)


@pytest.mark.parametrize("field", ["cache_salt", "session_id"])
def test_names_have_a_limit(field: str) -> None:
    with pytest.raises(BadRequest, match="length <= 4096"):
        read_completion(msgspec.json.encode({"prompt": "a", field: "a" * 4097}))


def test_a_long_user_is_a_short_session() -> None:
    asked = read_completion(msgspec.json.encode({"prompt": "a", "user": "b" * 10_000}))
    assert asked.session == "b" * 4096


async def test_parameters_of_all_choices_together_have_a_limit() -> None:
    each = LARGEST_SHAPES // MOST_CALLS // 2  # an id and its comma
    asked = {"prompt": ["a"] * MOST_CALLS, "max_tokens": 1, "allowed_token_ids": [1] * each}
    with pytest.raises(BadRequest, match=f"of {MOST_CALLS} choices .* than {LARGEST_SHAPES}"):
        await complete(asked)
    await complete({**asked, "prompt": ["a"] * 2})


def test_what_is_told_of_a_wrong_value_is_short() -> None:
    effort = "a" * (10 * LONGEST_ERROR)
    with pytest.raises(BadRequest) as refused:
        read_chat(msgspec.json.encode({"messages": [], "reasoning_effort": effort}))
    assert len(str(refused.value)) < LONGEST_ERROR + 500
    assert refused.value.param == "reasoning_effort"


async def test_long_texts_leave_threads_to_others() -> None:
    codec, over = byte_level(), Event()
    long = [run_off_loop(LONG + 1, over.wait, codec) for _ in range(2 * MOST_THREADS)]
    waiting = asyncio.gather(*long)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.sleep(0)
            assert await run_off_loop(INLINE_SIZE + 1, lambda: 5, codec) == 5
            assert not waiting.done()
    finally:
        over.set()
        await waiting


class Body:
    """What a request holds."""


def failing() -> tuple[Callable[[], None], "ref[Body]"]:
    held = Body()

    def work() -> None:
        raise ValueError(repr(held))

    return work, ref(held)


async def test_what_a_thread_refused_is_not_kept_until_garbage_is_collected() -> None:
    work, held = failing()
    gc.disable()
    try:
        with ThreadPoolExecutor(1) as threads:
            with suppress(ValueError):
                await run_in_thread(work, threads)
            del work
            await asyncio.sleep(0)  # the loop's own turns hold the future
        assert held() is None
    finally:
        gc.enable()
