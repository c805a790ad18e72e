"""A request that the system has no thread for is refused for as long as that lasts."""

import asyncio
import gc
from collections.abc import Mapping
from weakref import ref

import pytest

from api.encoding import INLINE_SIZE
from api.errors import TooBusy
from api.generator import TokenEvent
from api.threads import run_in_thread
from engine.request import FinishReason, Logprob
from proxy.models.text_store import FIRST_PAUSE_S
from tests.fakes.catalogue import Rig
from tests.fakes.http import Client, Json
from tests.fakes.pooling_door import client as pooling
from tests.fakes.responses import CODEC
from tests.fakes.text import FakeDoor, parcel_of_text, saying, served
from tests.fakes.threads import NoThreads

LONG = "the cat " * INLINE_SIZE
MESSAGES = [{"role": "user", "content": LONG}]
HI = [{"role": "user", "content": "hi"}]
STRICT = [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
CALLS: dict[str, tuple[str, Mapping[str, Json]]] = {
    "a completion": ("/v1/completions", {"prompt": LONG}),
    "a chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "a response": ("/v1/responses", {"input": LONG}),
    "a response's count": ("/v1/responses/input_tokens", {"input": LONG}),
    "a message": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5}),
    "a message's count": ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    "tokens": ("/tokenize", {"prompt": LONG}),
    "text": ("/detokenize", {"tokens": [1] * (INLINE_SIZE + 1)}),
    "strict tools": ("/v1/chat/completions", {"messages": HI, "tools": STRICT}),
    "a form beside tools": (
        "/v1/chat/completions",
        {"messages": HI, "tools": STRICT, "response_format": FORMAT},
    ),
}


def no_threads() -> NoThreads:
    threads = NoThreads(1)
    asyncio.get_running_loop().set_default_executor(threads)
    return threads


@pytest.mark.parametrize(("path", "fields"), CALLS.values(), ids=CALLS)
async def test_it_is_a_503_and_no_longer_than_that(path: str, fields: Json) -> None:
    client = Client(saying("the sea", CODEC), served(CODEC, context=1 << 20))
    threads = no_threads()
    refused = await client.post(path, **fields)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "There is no thread for this request now" in refused.body
    threads.over = True
    assert (await client.post(path, **fields)).status == 200


async def test_a_text_to_pool_is_refused_so_too() -> None:
    client, threads = pooling(context=1 << 20), no_threads()
    assert (await client.post("/v1/embeddings", input=LONG)).status == 503
    threads.over = True
    assert (await client.post("/v1/embeddings", input=LONG)).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_no_thread_can_write_ends_with_a_503(*, stream: bool) -> None:
    tokens = CODEC.encode("the cat") * INLINE_SIZE
    scored = tuple((Logprob(token, -1.0, 1),) for token in tokens)
    said = [
        TokenEvent(tokens[:1], logprobs=scored[:1]),
        TokenEvent(tokens, FinishReason.LENGTH, logprobs=scored),
    ]
    client = Client(FakeDoor(lambda request, leg: said), served(CODEC, context=1 << 20))
    no_threads()
    answer = await client.complete(logprobs=0, max_tokens=1 + len(tokens), stream=stream)
    error = answer.events[-1] if stream else answer.json
    assert error["error"]["message"].startswith("There is no thread for this request now")
    assert stream or answer.status == 503


async def test_tokenizer_files_are_fetched_once_there_are_threads_again() -> None:
    rig, threads = Rig(), no_threads()
    rig.beat("a:1", parcel=parcel_of_text())
    await rig.load()
    with pytest.raises(TooBusy):
        await rig.find("m", text=True)
    threads.over = True
    rig.now += FIRST_PAUSE_S
    await rig.load()
    assert (await rig.find("m", text=True)).codec


async def test_what_was_refused_is_not_kept() -> None:
    """The pool keeps a turn for each, which does nothing once a thread has come."""
    done, threads = list[int](), no_threads()

    def work() -> None:
        done.append(1)

    kept = ref(work)
    with pytest.raises(TooBusy):
        await run_in_thread(work)
    del work
    gc.collect()
    assert kept() is None
    threads.over = True
    assert await run_in_thread(lambda: len(done)) == 0


async def test_what_the_work_raises_is_not_taken_for_that() -> None:
    def work() -> None:
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="of its own"):
        await run_in_thread(work)
