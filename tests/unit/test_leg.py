"""A leg at a node of ours: asked at once, heard without a task, and hung up once."""

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from api.generator import WHOLE, Leg, TicketEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import FinishReason, Request, RequestId, Sampling
from kv_transfer.ticket import KvTicket, to_params
from proxy.attempt.legs import LegItem, Legs
from proxy.errors import NodeFailed
from proxy.nodes.client import HttpNodeClient
from proxy.nodes.connection import MOST_AT_ONCE, NodeConnection
from proxy.nodes.connection_pool import ConnectionPool, open_connections
from proxy.nodes.leg import HttpLeg
from tests.fakes.raw_http import (
    END,
    HANG,
    PATIENCE_S,
    SSE,
    RawServer,
    Step,
    answer,
    chunk,
    events,
    raw_server,
)

REQUEST = Request(RequestId("r1"), (1, 2, 3), Sampling(4))
PARAMS = to_params(KvTicket("t", "e", "h", 1, None))
DONE = chunk(b"data: [DONE]\n\n")
HELD = [SSE, *events({"choices": [], "kv_transfer_params": PARAMS})]
FIRST, LAST = (
    {"choices": [{"token_ids": [7]}]},
    {"choices": [{"token_ids": [8], "finish_reason": "length"}]},
)
TURNS = 10_000  # of the loop
HOLD = Leg(hold=True, keep_open=True)


@asynccontextmanager
async def node(role: Role, *scripts: Iterable[Step]) -> AsyncGenerator[tuple[Node, RawServer]]:
    async with asyncio.timeout(PATIENCE_S), raw_server(*scripts) as server:
        yield Node(Registration(role, server.address, "h:1", role.name), heard_at=0), server


def leg_at(lines: ConnectionPool, asked: Node, leg: Leg = WHOLE) -> HttpLeg:
    stream = HttpNodeClient(lines).generate(asked, REQUEST, leg)
    assert isinstance(stream, HttpLeg)
    return stream


async def until(there: Callable[[], bool]) -> None:
    for _ in range(TURNS):
        if there():
            return
        await asyncio.sleep(0)
    raise TimeoutError


async def split(lines: ConnectionPool, p: Node, d: Node) -> list[object]:
    """One request, as the pipeline reads it."""
    async with Legs() as legs:
        legs.open(p, leg_at(lines, p, HOLD))
        ticket = await legs.next()
        legs.open(d, leg_at(lines, d))
        said = [ticket]
        while (news := await legs.next()) is not None:
            said.append(news)
    return [(node.role.name, type(event)) for node, event in filter(None, said)]


async def test_two_legs_on_connections_that_are_kept_take_no_task() -> None:
    held = [*HELD, *events(FIRST), DONE, END]
    told = [SSE, *events(FIRST, LAST), DONE, END]
    begun = list[Coroutine[Any, Any, Any]]()

    def counted(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **named: object
    ) -> "asyncio.Task[Any]":
        del named
        begun.append(work)
        return asyncio.Task(work, loop=loop)

    async with (
        node(Role.PREFILL, held, held) as (p, _),
        node(Role.DECODE, told, told) as (d, _),
        open_connections() as lines,
    ):
        first = await split(lines, p, d)
        asyncio.get_running_loop().set_task_factory(counted)  # type: ignore[arg-type]
        assert sorted(map(str, await split(lines, p, d))) == sorted(map(str, first))
        assert begun == []


async def test_a_leg_is_asked_when_it_is_opened() -> None:
    """Nobody need read it for that."""
    async with node(Role.DECODE, [SSE, HANG]) as (d, server), open_connections() as lines:
        async with Legs() as legs:
            legs.open(d, leg_at(lines, d))
            await server.asked.wait()
        await server.left.wait()


async def test_who_leaves_before_there_is_a_connection_leaves_none_behind() -> None:
    async with node(Role.DECODE, [SSE, HANG]) as (d, server), open_connections() as lines:
        for turns in range(6):
            leg = leg_at(lines, d)
            assert not leg.ready()
            for _ in range(turns):
                await asyncio.sleep(0)
            leg.hang_up()
        await until(lambda: all(line.lost for line in lines.connections()))
        assert lines.take_idle(server.address) is None


async def test_a_connection_is_given_back_once() -> None:
    async with (
        node(Role.DECODE, [answer(400, {})]) as (d, server),
        open_connections() as lines,
    ):
        async with Legs() as legs:
            leg = leg_at(lines, d)
            legs.open(d, leg)
            news = await legs.next()
            assert news is not None
            assert isinstance(news[1], NodeFailed)
            leg.hang_up()
            await legs.close(d)
        assert lines.take_idle(server.address) is not None
        assert lines.take_idle(server.address) is None


async def test_a_kept_connection_whose_host_is_gone_is_the_nodes_failure() -> None:
    told = [SSE, *events(FIRST, LAST), DONE, END]
    async with (
        node(Role.DECODE, told, [HANG], told) as (d, server),
        open_connections() as lines,
    ):
        async with Legs() as legs:
            legs.open(d, leg_at(lines, d))
            while await legs.next() is not None:
                pass
        server.asked.clear()
        [kept] = lines._idle[d.registration.http_address]
        async with aclosing(leg_at(lines, d)) as leg:
            said = asyncio.create_task(anext(leg))
            await server.asked.wait()
            kept.connection_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
            with pytest.raises(NodeFailed, match="timed out"):
                await said


async def test_legs_are_heard_in_turn() -> None:
    """What one has said before the other had its turn is heard before the other's."""
    async with (
        node(Role.PREFILL, [*HELD, HANG]) as (p, _),
        node(Role.DECODE, [SSE, HANG]) as (d, _),
        open_connections() as lines,
        Legs() as legs,
    ):
        held, told = leg_at(lines, p, HOLD), leg_at(lines, d)
        legs.open(p, held)
        ticket = await legs.next()
        assert ticket is not None
        assert isinstance(ticket[1], TicketEvent)
        legs.open(d, told)
        waiting = asyncio.create_task(legs.next())
        await until(lambda: bool(told._connection and told._connection.status))
        for leg in (told, held, told):
            assert leg._connection
            leg._connection.data_received(events(FIRST)[0])
        assert await waiting == (d, TokenEvent((7, 7)))
        assert await legs.next() == (p, TokenEvent((7,)))


async def test_what_came_together_is_one_event_and_then_the_end() -> None:
    script = [SSE, b"".join([*events(FIRST, LAST), DONE, END])]
    async with node(Role.DECODE, script) as (d, _), open_connections() as lines:
        leg = leg_at(lines, d)
        assert [event async for event in leg] == [TokenEvent((7, 8), FinishReason.LENGTH)]
        with pytest.raises(StopAsyncIteration):
            await anext(leg)


LATE_S = 0.01


def at(server: RawServer) -> Node:
    return Node(Registration(Role.DECODE, server.address, "h:1", "d"), heard_at=0)


async def given_back(lines: ConnectionPool, server: RawServer) -> None:
    line: NodeConnection | None = None
    while line is None:
        await asyncio.sleep(0)
        line = lines.take_idle(server.address)
    lines.give_back(line)


async def test_connections_are_used_again() -> None:
    """Also where the end comes later than the last token."""
    late = asyncio.Event()
    script: list[Step] = [SSE, *events(LAST), late, DONE, END]
    async with raw_server(*[script] * 3) as server, open_connections() as lines:
        client = HttpNodeClient(lines, ending_s=PATIENCE_S)
        for _ in range(3):
            late.clear()
            asyncio.get_running_loop().call_later(LATE_S, late.set)
            async with aclosing(client.generate(at(server), REQUEST, WHOLE)) as stream:
                await anext(stream)  # who has the last event need not read on
            async with asyncio.timeout(PATIENCE_S):
                await given_back(lines, server)
    assert server.connections == 1


async def test_nobody_waits_for_a_stream_to_end_behind_its_last_token() -> None:
    """One that does not is hung up a little later."""
    async with (
        raw_server([SSE, *events(LAST), HANG]) as server,
        open_connections() as lines,
    ):
        client = HttpNodeClient(lines, ending_s=LATE_S)
        async with asyncio.timeout(PATIENCE_S):
            said = [event async for event in client.generate(at(server), REQUEST, WHOLE)]
            assert not server.left.is_set()
            await server.left.wait()
    assert said == [TokenEvent((8,), FinishReason.LENGTH)]


Waiting = asyncio.Task[LegItem | None]


@dataclass
class Taken:
    """A tap that takes everything."""

    tokens: list[int] = field(default_factory=list)

    def take(self, tokens: tuple[int, ...]) -> bool:
        self.tokens += tokens
        return True


@asynccontextmanager
async def poured(
    tap: Taken,
) -> AsyncGenerator[tuple[HttpLeg, "asyncio.Task[LegItem | None]"]]:
    """A leg whose tokens behind its first go to the tap, and who waits for anything else."""
    async with (
        node(Role.DECODE, [SSE, HANG]) as (d, _),
        open_connections() as lines,
        Legs() as legs,
    ):
        leg = leg_at(lines, d)
        legs.open(d, leg)
        first = asyncio.create_task(legs.next())
        await until(lambda: bool(leg._connection and leg._connection.status))
        assert leg._connection
        leg._connection.data_received(events(FIRST)[0])
        assert await first == (d, TokenEvent((7,)))
        legs.tap(d, tap)
        waiting = asyncio.create_task(legs.next())
        await asyncio.sleep(0)  # so that it does
        yield leg, waiting
        waiting.cancel()


async def test_all_of_a_burst_is_poured_however_large() -> None:
    """More than is taken of a line at once: nobody is told of the rest."""
    burst = events(FIRST)[0] * 5_000
    assert len(burst) > 3 * MOST_AT_ONCE
    async with poured(tap := Taken()) as (leg, _):
        assert leg._connection
        leg._connection.data_received(burst)
        assert tap.tokens == [7] * 5_000


async def test_a_stream_that_breaks_off_amid_the_pouring_fails() -> None:
    async with poured(tap := Taken()) as (leg, waiting):
        assert leg._connection
        leg._connection.data_received(events(FIRST)[0] + END)
        news = await waiting
        assert news is not None
        assert isinstance(news[1], NodeFailed)
        assert tap.tokens == [7]
