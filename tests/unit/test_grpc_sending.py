"""gRPC calls that end while a reply is sent: by an abort, or as their client does not read.

Where a test takes replies itself, it is what sends: gRPC loses a call whose task is cancelled
while it does.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import cast

import grpc
import pytest

from api.endpoints import TextEndpoints
from api.generator import WHOLE, Event, Generator, Leg, PromptEvent, Tap, TokenEvent
from api.grpc import server
from api.grpc.calls import Completions, Context, RunningCalls
from api.grpc.inference import Inference
from api.grpc.protos import inference_pb2 as pb
from api.grpc.protos import vllm_engine_pb2
from api.grpc.tokenizer_archive import TokenizerArchive
from api.grpc.vllm_engine import VllmEngine
from engine.request import Request
from tests.fakes.grpc_server import (
    CONTEXT,
    FACTS,
    Caller,
    asking,
    reason,
    rest,
    serving,
)
from tests.fakes.text import OneToken, Waiting, byte_level, served

NOT_CALLED = cast("Context", None)


class Endless:
    """Says more than any client's buffers hold."""

    def __init__(self) -> None:
        self.closed, self.said = asyncio.Event(), 0

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        tokens = tuple(byte_level().encode("the cat sat")) * 1_000
        try:
            yield PromptEvent(0)
            while True:
                self.said += 1
                yield TokenEvent(tokens)
                await asyncio.sleep(0)
        finally:
            self.closed.set()


def completions_of(door: Generator, running: RunningCalls) -> Completions:
    async def give_up(body: Mapping[str, object]) -> None:
        assert not body.get("kv_transfer_params")

    return Completions(TextEndpoints(door, served(context=CONTEXT)), give_up, running)


def stream_of(
    door: Generator, running: RunningCalls, choices: int = 1
) -> AsyncGenerator[pb.GenerateResponse]:
    request = asking(request_id="r", sampling={"num_sequences": choices})
    return Inference(completions_of(door, running)).generate_stream(request, NOT_CALLED)


@pytest.mark.parametrize("choices", [1, 2])
async def test_an_abort_while_a_reply_is_sent_stops_the_engine_and_is_told_behind_it(
    choices: int,
) -> None:
    door, running = Waiting(), RunningCalls()
    replies = stream_of(door, running, choices)
    async with asyncio.timeout(10):
        assert reason(await anext(replies)) == "NOT_FINISHED"
        running.abort(["r"])
        await door.none_open.wait()
        assert [reason(reply) async for reply in replies] == ["ABORTED"]
    assert len(running) == 0


async def test_an_abort_while_the_end_is_sent_says_nothing_more() -> None:
    door, running = Waiting(), RunningCalls()
    door.go.set()
    replies = stream_of(door, running)
    assert [reason(await anext(replies)) for _ in range(2)] == ["NOT_FINISHED", "LENGTH"]
    running.abort(["r"])
    assert [reply async for reply in replies] == []
    assert door.open == len(running) == 0


@pytest.mark.parametrize("aborted", [False, True])
async def test_who_leaves_while_a_reply_is_sent_leaves_nothing_open(*, aborted: bool) -> None:
    door, running = Waiting(), RunningCalls()
    replies = stream_of(door, running)
    await anext(replies)
    if aborted:
        running.abort(["r"])
    await replies.aclose()
    assert door.open == len(running) == 0


async def test_nor_does_who_leaves_vllm_engine() -> None:
    door, running = Waiting(), RunningCalls()
    request = vllm_engine_pb2.GenerateRequest(text="the cat", stream=True)
    completions = completions_of(door, running)
    engine = VllmEngine(completions, FACTS, TokenizerArchive(None), None)
    replies = engine.generate(request, NOT_CALLED)
    await anext(replies)
    await replies.aclose()
    assert door.open == len(running) == 0


async def test_who_is_aborted_and_cancelled_is_cancelled() -> None:
    door, running = OneToken(), RunningCalls()
    inference = Inference(completions_of(door, running))

    async def whole() -> object:
        return await inference.generate(asking(request_id="r"), NOT_CALLED)

    task = asyncio.create_task(whole())
    await door.waits.wait()
    running.abort(["r"])
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert door.closed.is_set()
    assert len(running) == 0


async def test_a_reply_that_nobody_reads_for_long_ends_its_call() -> None:
    door, running = Waiting(), RunningCalls()
    clock = asyncio.get_running_loop().time
    async with aclosing(stream_of(door, running)) as replies:
        running.abort_unread(clock())
        began = clock()
        await anext(replies)
        running.abort_unread(began - 1.0)
        await asyncio.sleep(0)
        assert door.open == 1
        running.abort_unread(clock())
        running.abort_unread(clock())
        assert [reason(reply) async for reply in replies] == ["ABORTED"]
    assert door.open == len(running) == 0


async def test_a_client_that_does_not_read_does_not_keep_the_engine_busy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.0)
    monkeypatch.setattr(server, "SLOW_CLIENT_S", 0.0)
    door = Endless()
    async with serving(door) as caller, asyncio.timeout(20):
        call = caller.call("GenerateStream", asking(request_id="r"))
        looking = asyncio.create_task(caller.server.run())
        await door.closed.wait()
        assert reason((await rest(call))[-1]) == "ABORTED"
        looking.cancel()
        await asyncio.wait([looking])
        assert len(caller.running) == 0
    assert [record.getMessage() for record in caplog.records] == [
        "request_id=r ends: its client does not read"
    ]


async def test_a_client_that_leaves_while_a_reply_is_sent_is_nothing_for_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = Endless()
    async with serving(door) as caller, asyncio.timeout(20):
        call = caller.call("GenerateStream", asking(request_id="r"))
        said = -1
        while door.said > said:
            said = door.said
            await caller.ask("IsPaused")
            await caller.ask("IsPaused")
        call.cancel()
        await door.closed.wait()
    assert caplog.records == []


@asynccontextmanager
async def relay(port: int) -> AsyncGenerator[tuple[str, asyncio.Event]]:
    """An address that leads to a port until the event is set: then nothing is passed on."""
    frozen, tasks = asyncio.Event(), set[asyncio.Task[None]]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not frozen.is_set():
                    writer.write(data)
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        tasks.update(map(asyncio.create_task, (carry(reader, back), carry(there, writer))))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as listening:
        host, number = listening.sockets[0].getsockname()
        yield f"{host}:{number}", frozen
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_whose_host_died_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = [(name, 100 if name.endswith("_ms") else one) for name, one in server.OPTIONS]
    monkeypatch.setattr(server, "OPTIONS", soon)
    door = OneToken()
    async with (
        serving(door) as caller,
        relay(caller.server.port) as (address, frozen),
        grpc.aio.insecure_channel(address) as channel,
        asyncio.timeout(20),
    ):
        there = Caller(channel, caller.server, caller.running)
        call = there.call("GenerateStream", asking())
        await call.read()
        frozen.set()
        await door.closed.wait()
        call.cancel()
