"""What the door tells the engine process of its legs, and the legs of the engine process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from api.generator import (
    EndEvent,
    Event,
    FailedEvent,
    Leg,
    NodeLeaving,
    PooledEvent,
    PromptEvent,
    RequestRefused,
    StreamFailed,
    TokenEvent,
)
from engine.api import EngineLoad
from engine.request import FinishReason, PoolingRequest, Request, RequestId, Sampling
from kv_transfer.ticket import KvTicket
from node.engine_client import STOPPING, EngineClient, EngineDied
from node.ipc import (
    Abort,
    EngineOutputs,
    SubmitLeg,
    SubmitPooling,
    ToEngine,
    decode_to_engine,
    encode,
)
from tests.unit.test_node_door import READY

PATIENCE_S = 10.0
EMPTY, IN_USE = EngineLoad(0, 0, 4, 4), EngineLoad(0, 1, 3, 4)
TICKET = KvTicket("t", "e", "h", 1, "f")
LAST, MORE = TokenEvent((2,), FinishReason.LENGTH), TokenEvent((1,))
MOVABLE = Leg(ticket=TICKET, keep_open=True)
KEPT = Leg(hold=True, keep_open=True)


@dataclass
class Engine:
    """An engine process by script, at both of its ends; `sent` is what it gets."""

    sent: list[ToEngine] = field(default_factory=list)
    says: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    returncode: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def client(self) -> EngineClient:
        socket: Any = self
        return EngineClient(socket, socket, READY)

    async def send(self, frame: bytes) -> None:
        self.sent.append(decode_to_engine(frame))

    async def recv(self) -> bytes:
        return await self.says.get()

    async def wait(self) -> int:
        await self.ended.wait()
        self.returncode = -9
        return self.returncode

    @property
    def submitted(self) -> list[RequestId]:
        legs = [one for one in self.sent if isinstance(one, SubmitLeg | SubmitPooling)]
        return [one.request.request_id for one in legs]

    @property
    def aborted(self) -> list[RequestId]:
        return [one.request_id for one in self.sent if isinstance(one, Abort)]


def request() -> Request:
    return Request(RequestId("r"), (1,), Sampling())


async def begun(
    client: EngineClient, engine: Engine, leg: Leg
) -> tuple[RequestId, AsyncGenerator[Event | None]]:
    """A leg of which the engine has said a first word."""
    events = client.events(request(), leg)
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    name = engine.submitted[-1]
    client._apply(EngineOutputs([(name, PromptEvent(0))], IN_USE))
    assert await first == PromptEvent(0)
    return name, events


def test_legs_of_one_request_have_different_names() -> None:
    client = Engine().client()
    assert client._open(RequestId("r"))[0] != client._open(RequestId("r"))[0]


@pytest.mark.parametrize("leg", [Leg(), MOVABLE, KEPT])
async def test_who_goes_before_the_end_has_its_leg_aborted(leg: Leg) -> None:
    engine = Engine()
    client = engine.client()
    name, events = await begun(client, engine, leg)
    await events.aclose()
    assert (engine.aborted, client.num_legs) == ([name], 0)


async def test_who_goes_before_the_first_word_has_its_leg_aborted() -> None:
    engine = Engine()
    client = engine.client()
    first = asyncio.ensure_future(anext(client.events(request())))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (engine.aborted, client.num_legs) == (engine.submitted, 0)


@pytest.mark.parametrize(
    ("leg", "said"),
    [
        *((Leg(), [MORE, LAST]), (MOVABLE, [MORE, LAST])),
        *((Leg(hold=True), [MORE]), (KEPT, [MORE, EndEvent()])),
        (KEPT, [FailedEvent("expired", retryable=True)]),
    ],
)
async def test_a_leg_that_has_ended_is_not_aborted(leg: Leg, said: list[Event]) -> None:
    """Its KV may still be on offer then."""
    engine = Engine()
    client = engine.client()
    name, events = await begun(client, engine, leg)
    client._apply(EngineOutputs([(name, event) for event in said], IN_USE))
    assert [event async for event in events] == said
    assert (engine.aborted, client.num_legs) == ([], 0)


async def test_a_prefill_leg_that_is_left_at_its_token_keeps_its_kv() -> None:
    """The frame of its token has the ticket: a driver may read no further."""
    engine = Engine()
    client = engine.client()
    name, events = await begun(client, engine, Leg(hold=True))
    client._apply(EngineOutputs([(name, MORE)], IN_USE))
    assert await anext(events) == MORE
    await events.aclose()
    assert (engine.aborted, client.num_legs) == ([], 0)


async def test_a_node_that_stops_tells_all_its_legs() -> None:
    engine = Engine()
    client = engine.client()
    legs = [await begun(client, engine, leg) for leg in (Leg(), MOVABLE, KEPT)]
    client.reject_legs()
    async with asyncio.timeout(PATIENCE_S):
        assert [[event async for event in events] for _, events in legs] == [[STOPPING]] * 3
    assert engine.aborted == [], "what they have on offer stays until the process ends"


async def test_a_leg_that_continues_elsewhere_is_told_once_and_ends_here() -> None:
    engine = Engine()
    client = engine.client()
    name, events = await begun(client, engine, MOVABLE)
    client.migrate_legs()
    client.migrate_legs()
    assert len(client._inboxes[name].events) == 1
    (told,) = [event async for event in events]
    assert isinstance(told, FailedEvent)
    assert (told.retryable, told.parked, told.leaving) == (True, True, True)
    assert (engine.aborted, client.num_legs) == ([name], 0)


@pytest.mark.parametrize("leg", [Leg(), Leg(ticket=TICKET), Leg(hold=True), KEPT])
async def test_a_leg_that_cannot_continue_elsewhere_stays(leg: Leg) -> None:
    engine = Engine()
    client = engine.client()
    name, events = await begun(client, engine, leg)
    client.migrate_legs()
    assert not client._inboxes[name].events
    await events.aclose()


async def test_a_node_is_quiescent_without_legs_and_kv() -> None:
    engine = Engine()
    client = engine.client()
    assert not client.quiescent.is_set(), "nothing is known of it yet"
    client._apply(EngineOutputs([], EMPTY))
    assert client.quiescent.is_set()
    client._apply(EngineOutputs([], IN_USE))
    assert not client.quiescent.is_set(), "somebody may fetch this"
    client._apply(EngineOutputs([], EMPTY))
    async with aclosing(client.events(request())) as events:
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert not client.quiescent.is_set(), "the engine has not read it yet"
        client._apply(EngineOutputs([], EMPTY))
        assert not client.quiescent.is_set()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    client._apply(EngineOutputs([], EMPTY))
    assert client.quiescent.is_set()


async def test_all_legs_hear_that_the_engine_process_died() -> None:
    engine = Engine()
    client = engine.client()
    running = asyncio.create_task(client.run())
    legs = [await begun(client, engine, leg) for leg in (Leg(), MOVABLE, KEPT)]
    name, _ = legs[0]
    await engine.says.put(encode(EngineOutputs([(name, MORE)], IN_USE)))
    assert await anext(legs[0][1]) == MORE
    engine.ended.set()
    async with asyncio.timeout(PATIENCE_S):
        for _, events in legs:
            (told,) = [event async for event in events]
            assert isinstance(told, FailedEvent)
            assert (told.retryable, told.parked, told.leaving) == (True, True, False)
        with pytest.raises(EngineDied, match="-9"):
            await running
    assert not client.alive
    assert engine.aborted == [], "nobody is there to hear it"


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (FailedEvent("x", retryable=True, leaving=True), NodeLeaving),
        (FailedEvent("x", retryable=True), StreamFailed),
        (FailedEvent("x", retryable=False, param="n"), RequestRefused),
    ],
)
async def test_a_text_stream_fails_as_its_leg_does(
    failed: FailedEvent, kind: type[StreamFailed]
) -> None:
    engine = Engine()
    client = engine.client()
    events = client.stream(request())
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    client._apply(EngineOutputs([(engine.submitted[0], failed)], EMPTY))
    with pytest.raises(StreamFailed, match="x") as raised:
        await first
    assert type(raised.value) is kind
    assert raised.value.param == failed.param


def prompts(count: int) -> list[PoolingRequest]:
    return [PoolingRequest(RequestId("r"), (1,)) for _ in range(count)]


async def test_vectors_come_in_the_order_of_their_prompts() -> None:
    engine = Engine()
    client = engine.client()
    pooling = asyncio.create_task(client.embed(prompts(2)))
    await asyncio.sleep(0)
    one, two = engine.submitted
    vectors = [PooledEvent(bytes(4), 1), PooledEvent(bytes(8), 2)]
    client._apply(EngineOutputs([(two, vectors[1]), (two, PromptEvent(0))], IN_USE))
    client._apply(EngineOutputs([(one, PromptEvent(0)), (one, vectors[0])], EMPTY))
    assert await pooling == vectors
    assert (engine.aborted, client.num_legs) == ([], 0)


async def test_of_prompts_of_which_one_fails_only_those_that_run_are_aborted() -> None:
    engine = Engine()
    client = engine.client()
    pooling = asyncio.create_task(client.embed(prompts(3)))
    await asyncio.sleep(0)
    one, two, three = engine.submitted
    refused = FailedEvent("too long", retryable=False)
    client._apply(EngineOutputs([(one, PooledEvent(bytes(4), 1)), (two, refused)], IN_USE))
    with pytest.raises(RequestRefused, match="too long"):
        await pooling
    assert (engine.aborted, client.num_legs) == ([three], 0)


async def test_prompts_whose_client_goes_are_aborted() -> None:
    engine = Engine()
    client = engine.client()
    pooling = asyncio.create_task(client.embed(prompts(2)))
    await asyncio.sleep(0)
    pooling.cancel()
    await asyncio.gather(pooling, return_exceptions=True)
    assert (set(engine.aborted), client.num_legs) == (set(engine.submitted), 0)
