"""Whoever leaves closes all legs, whatever they are waiting for."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from api.generator import EndEvent, Event, StageEvent, Tap, TicketEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role
from proxy.attempt.legs import LegItem, Legs
from proxy.nodes.connection_pool import open_connections
from tests.fakes.raw_http import END as LAST_CHUNK
from tests.fakes.raw_http import SSE, events
from tests.unit.test_leg import DONE, FIRST, HELD, HOLD, leg_at, node

PATIENCE_S = 10
A = Node(Registration(Role.PREFILL, "a:1", ""), heard_at=0)
B = Node(Registration(Role.DECODE, "b:1", ""), heard_at=0)
ONE, TWO, END = TokenEvent((1,)), TokenEvent((2,)), EndEvent()


@dataclass
class Leg:
    """Says its events, then nothing more until it is let go on."""

    events: Sequence[Event] = ()
    last: Exception | None = None
    closes: asyncio.Event | None = None
    parting: asyncio.Event | None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    async def stream(self) -> AsyncGenerator[Event]:
        try:
            for event in self.events:
                yield event
            self.asked.set()
            await self.go_on.wait()
            if self.last:
                raise self.last
        finally:
            self.closed = True
            if self.closes:
                self.closes.set()
            if self.parting:
                await self.parting.wait()


async def read(legs: Legs, count: int) -> list[LegItem | None]:
    async with asyncio.timeout(PATIENCE_S):
        return [await legs.next() for _ in range(count)]


@pytest.mark.parametrize("reading", [0, 1, 2])
async def test_leaving_closes_all(reading: int) -> None:
    a, b = Leg((ONE,)), Leg((TWO,))
    async with asyncio.timeout(PATIENCE_S), Legs() as legs:
        legs.open(A, a.stream())
        if reading:
            await legs.next()
        legs.open(B, b.stream())
        if reading > 1:
            await legs.next()
            await a.asked.wait()
    assert (a.closed, b.closed) == (reading > 0, reading > 1)


async def test_leaving_closes_a_leg_that_is_waited_for() -> None:
    a, b = Leg(), Leg()
    async with asyncio.timeout(PATIENCE_S), Legs() as legs:
        legs.open(A, a.stream())
        legs.open(B, b.stream())
        waiting = asyncio.create_task(legs.next())
        await a.asked.wait()
        await b.asked.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert (a.closed, b.closed) == (True, True)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_leg_that_is_closed_before_the_others_is_closed_at_once(others: int) -> None:
    a, b = Leg((ONE,)), Leg()
    async with asyncio.timeout(PATIENCE_S), Legs() as legs:
        legs.open(A, a.stream())
        for _ in range(others):
            legs.open(B, b.stream())
        assert await legs.next() == (A, ONE)
        await legs.close(A)
        assert a.closed


async def test_a_leg_outlives_who_stops_waiting_for_it() -> None:
    leg = Leg((), ValueError("later"))
    async with asyncio.timeout(PATIENCE_S), Legs() as legs:
        legs.open(A, leg.stream())
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await legs.next(0)
        assert not leg.closed
        leg.go_on.set()
        with pytest.raises(ValueError, match="later"):
            await legs.next(PATIENCE_S)


async def test_who_is_cancelled_while_leaving_closes_all_the_same() -> None:
    """One leg takes its time to close, and a client leaves meanwhile."""
    slow = Leg(closes=asyncio.Event(), parting=asyncio.Event())
    said = Leg((ONE, TWO))

    async def leave() -> None:
        async with Legs() as legs:
            legs.open(A, slow.stream())
            legs.open(B, said.stream())
            assert await legs.next() == (B, ONE)

    leaving = asyncio.create_task(leave())
    async with asyncio.timeout(PATIENCE_S):
        assert slow.closes
        await slow.closes.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    assert leaving.cancelled()
    assert said.closed


async def test_the_last_leg_is_read_on_when_the_other_has_ended() -> None:
    a, b = Leg((ONE, END)), Leg((ONE, TWO))
    a.go_on.set()
    async with Legs() as legs:
        legs.open(A, a.stream())
        legs.open(B, b.stream())
        said = await read(legs, 4)
        assert [event for event in said if event and event[0] is A] == [(A, ONE), (A, END)]
        assert [event for event in said if event and event[0] is B] == [(B, ONE), (B, TWO)]
        b.go_on.set()
        assert await read(legs, 1) == [None]


async def test_who_fails_first_is_heard_first() -> None:
    """The failure of one leg may be what makes the other fail, before anybody looks."""
    cause, effect = ValueError("cause"), ValueError("effect")
    b = Leg(last=effect)
    a = Leg((ONE,), last=cause, closes=b.go_on)
    async with Legs() as legs:
        legs.open(B, b.stream())
        legs.open(A, a.stream())
        assert await read(legs, 1) == [(A, ONE)]
        a.go_on.set()
        with pytest.raises(ValueError, match="cause"):
            await legs.next()
        assert b.closed


@dataclass
class Told:
    """A leg that says what it is told to say, when it is told to; and what was poured."""

    said: deque[Event] = field(default_factory=deque)
    told: Callable[[], None] = lambda: None
    poured: list[Event] = field(default_factory=list)

    def listen(self, told: Callable[[], None]) -> None:
        self.told = told

    def ready(self) -> bool:
        return bool(self.said)

    def take(self) -> Event:
        return self.said.popleft()

    def drain_to(self, tap: Tap) -> bool:
        event = self.said[0]
        if not isinstance(event, TokenEvent) or not tap.take(event.tokens):
            return False
        self.poured.append(self.said.popleft())
        return True

    def hang_up(self) -> None:
        self.said.clear()

    def say(self, event: Event) -> None:
        self.said.append(event)
        self.told()


@dataclass
class Open:
    """A tap that takes everything, or nothing."""

    takes: bool = True

    def take(self, tokens: tuple[int, ...]) -> bool:
        return self.takes


async def waits(legs: Legs) -> "asyncio.Task[LegItem | None]":
    """Somebody who waits for the next event."""
    task = asyncio.create_task(legs.next())
    await asyncio.sleep(0)
    return task


async def test_tokens_are_poured_while_somebody_waits() -> None:
    leg = Told()
    async with asyncio.timeout(PATIENCE_S), Legs() as legs:
        legs.open(B, leg)
        legs.tap(B, Open())
        reader = await waits(legs)
        leg.say(ONE)
        leg.say(TWO)
        assert leg.poured == [ONE, TWO]
        leg.say(END)
        assert await reader == (B, END)


async def test_nothing_is_poured_past_an_event_that_nobody_has_dealt_with() -> None:
    leg, stage = Told(), StageEvent("transfer", 0.0)
    async with asyncio.timeout(PATIENCE_S), Legs() as legs:
        legs.open(B, leg)
        legs.tap(B, Open())
        leg.say(ONE)  # nobody waits yet
        assert await legs.next() == (B, ONE)
        legs.tap(B, Open())
        reader = await waits(legs)
        leg.say(stage)
        leg.say(TWO)
        assert await reader == (B, stage)
        assert await legs.next() == (B, TWO)
    assert leg.poured == []


async def test_what_a_closed_leg_has_said_is_not_asked_for() -> None:
    a, b = Told(), Told()
    async with asyncio.timeout(PATIENCE_S), Legs() as legs:
        legs.open(A, a)
        legs.open(B, b)
        reader = await waits(legs)
        b.say(ONE)
        a.say(TWO)
        assert await reader == (B, ONE)
        await legs.close(A)
        a.say(TWO)  # too late
        b.say(END)
        assert await legs.next() == (B, END)


async def test_an_event_ends_the_pouring() -> None:
    leg, stage = Told(), StageEvent("transfer", 0.0)
    async with asyncio.timeout(PATIENCE_S), Legs() as legs:
        legs.open(B, leg)
        legs.tap(B, Open())
        leg.say(stage)
        await legs.next()
        reader = await waits(legs)
        leg.say(ONE)
        assert await reader == (B, ONE)


@pytest.mark.parametrize("other", [0, 1])
async def test_only_one_leg_is_poured_and_only_if_its_tap_takes(other: int) -> None:
    a, b = Told(), Told()
    async with asyncio.timeout(PATIENCE_S), Legs() as legs:
        legs.open(A, a)
        legs.open(B, b)
        legs.tap(B, Open(takes=bool(other)))
        reader = await waits(legs)
        node, leg = ((B, b), (A, a))[other]
        leg.say(ONE)
        assert await reader == (node, ONE)
    assert a.poured == b.poured == []


async def test_of_events_that_came_together_each_is_heard_once() -> None:
    """A leg is asked more than once whether it has one."""
    script = [SSE, b"".join([*HELD[1:], *events(FIRST), DONE, LAST_CHUNK])]
    async with (
        node(Role.PREFILL, script) as (p, _),
        open_connections() as lines,
        Legs() as legs,
    ):
        legs.open(p, leg_at(lines, p, HOLD))
        said = await read(legs, 4)
    assert [type(one and one[1]) for one in said] == [
        *(TicketEvent, TokenEvent, EndEvent),
        type(None),
    ]
