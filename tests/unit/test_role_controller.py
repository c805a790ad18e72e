"""A node obeys its operators: it drains, comes back, and changes its role when it is empty."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import pytest

from discovery.errors import MalformedOrder, MalformedRegistration, OrderRefused
from discovery.orders import NodeOrder, from_order, to_order
from discovery.registration import Registration, Role, State
from discovery.signature import Verifier, sign
from engine.api import EngineLoad
from node.identity import NodeIdentity
from node.role_controller import RoleController

P, D = Role.PREFILL, Role.DECODE
NICENESS = {P: 0, D: 5}
PATIENCE_S = 60.0
TURNS = 10


@dataclass
class Engine:
    load: EngineLoad = field(default_factory=lambda: EngineLoad(0, 0, 6, 10))
    quiescent: asyncio.Event = field(default_factory=asyncio.Event)
    num_legs: int = 3
    niceness: list[int] = field(default_factory=list)
    handed_over: asyncio.Event = field(default_factory=asyncio.Event)

    def migrate_legs(self) -> None:
        self.handed_over.set()

    async def renice(self, niceness: int) -> None:
        self.niceness.append(niceness)


class Waits(asyncio.Event):
    """Counts how often somebody began to wait."""

    begun = 0

    async def wait(self) -> Literal[True]:
        self.begun += 1
        return await super().wait()


@dataclass
class Rig:
    engine: Engine
    duty: RoleController
    said: asyncio.Queue[Registration]

    def order(self, *, state: State | None = None, role: Role | None = None) -> None:
        self.duty.execute(NodeOrder("n0", "proxy", state, role))

    async def hear(self) -> Registration:
        return await asyncio.wait_for(self.said.get(), PATIENCE_S)


@asynccontextmanager
async def rig(patience_s: float = PATIENCE_S) -> AsyncGenerator[Rig]:
    engine, said = Engine(), asyncio.Queue[Registration]()
    identity = NodeIdentity(Registration(P, "h:1", "h:2", "n0"))

    def announce() -> None:
        said.put_nowait(identity.heartbeat(engine.load))

    duty = RoleController(identity, engine, announce, NICENESS.__getitem__, patience_s)
    running = asyncio.create_task(duty.run())
    yield Rig(engine, duty, said)
    running.cancel()


async def test_drained_and_back_is_said_at_once() -> None:
    async with rig() as one:
        for state in (State.DRAINING, State.DRAINING, State.READY):
            one.order(state=state)
            assert (await one.hear()).state is state
        assert one.said.empty()


async def test_the_answer_says_what_is_in_flight() -> None:
    async with rig() as one:
        standing = one.duty.execute(NodeOrder("n0", "proxy", State.DRAINING))
        assert (standing.in_flight, standing.kv_blocks_used) == (3, 4)
        assert (standing.role, standing.state, standing.wanted) == (P, State.DRAINING, None)


async def test_a_role_changes_once_nothing_is_in_flight() -> None:
    async with rig() as one:
        one.order(role=D)
        said = await one.hear()
        assert (said.type, said.state, said.turn) == (P, State.DRAINING, 0)
        one.engine.quiescent.set()
        said = await one.hear()
        assert (said.type, said.state, said.turn, said.node_id) == (D, State.READY, 1, "n0")
        assert one.engine.niceness == [5]
        assert not one.engine.handed_over.is_set()


async def test_what_does_not_end_in_time_is_handed_over() -> None:
    async with rig(patience_s=0) as one:
        one.order(role=D)
        await asyncio.wait_for(one.engine.handed_over.wait(), PATIENCE_S)
        one.engine.quiescent.set()
        assert (await one.hear()).state is State.DRAINING
        assert (await one.hear()).type is D


async def test_an_order_that_is_repeated_does_not_put_the_change_off() -> None:
    async with rig() as one:
        one.engine.quiescent = waits = Waits()
        for _ in range(2):
            one.order(role=D)
            assert (await one.hear()).state is State.DRAINING
        waits.set()
        assert (await one.hear()).type is D
        assert waits.begun == 1


async def test_its_own_role_takes_back_an_order_to_change_it() -> None:
    async with rig() as one:
        one.order(role=D)
        one.order(role=P)
        one.engine.quiescent.set()
        assert [(await one.hear()).state for _ in range(2)] == [State.DRAINING, State.READY]
        one.order(role=D)
        await one.hear()
        assert (await one.hear()).turn == 1
        assert one.engine.niceness == [5]


async def test_a_role_ordered_anew_is_waited_for_anew_and_changes_nothing_before() -> None:
    """Taken back and ordered again while legs run: nothing is told of them."""
    async with rig() as one:
        one.engine.quiescent = waits = Waits()
        before = len(asyncio.all_tasks())
        for role in (D, P, D):
            one.order(role=role)
            await one.hear()
            for _ in range(TURNS):
                await asyncio.sleep(0)
        assert waits.begun == 2
        assert (one.duty.identity.role, one.engine.niceness) == (P, [])
        waits.set()
        assert (await one.hear()).type is D
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == before, "nobody waits on"


async def test_who_stops_keeps_its_role() -> None:
    """It would be said to take work again otherwise."""
    async with rig() as one:
        one.order(role=D)
        await one.hear()
        one.duty.identity.stopping = True
        one.engine.quiescent.set()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert one.said.empty()
        assert one.duty.identity.role is P
        assert one.engine.niceness == []


async def test_a_role_that_is_taken_back_too_late_is_changed_back() -> None:
    """Its niceness as well: it is that of the role, whenever the order comes."""
    async with rig() as one:

        async def renice(niceness: int) -> None:
            one.engine.niceness.append(niceness)
            if niceness == NICENESS[D]:
                one.order(role=P)

        one.engine.renice = renice  # type: ignore[method-assign]
        one.engine.quiescent.set()
        one.order(role=D)
        said = [await one.hear() for _ in range(4)]
        assert [one.type for one in said] == [P, D, D, P]
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert one.said.empty()
        assert one.duty.identity.role is P
        assert one.engine.niceness == [NICENESS[D], NICENESS[P]]


async def test_there_and_back_again_counts_as_two_turns() -> None:
    async with rig() as one:
        one.engine.quiescent.set()
        for turn, role in ((1, D), (2, P)):
            one.order(role=role)
            await one.hear()
            said = await one.hear()
            assert (said.turn, said.type) == (turn, role)


async def test_who_was_drained_stays_so_in_its_new_role() -> None:
    async with rig() as one:
        one.engine.quiescent.set()
        one.order(state=State.DRAINING)
        one.order(role=D)
        said = [await one.hear() for _ in range(3)][-1]
        assert (said.type, said.state) == (D, State.DRAINING)


async def test_orders_are_for_one_process_and_not_for_its_end() -> None:
    async with rig() as one:
        with pytest.raises(OrderRefused, match="this is node n0"):
            one.duty.execute(NodeOrder("n1", "proxy", State.DRAINING))
        one.duty.identity.stopping = True
        with pytest.raises(OrderRefused, match="stopping"):
            one.order(state=State.READY)
        assert one.said.empty()


def test_a_signed_order_cannot_be_forged_or_sent_again() -> None:
    verifier = Verifier(b"key", "sender")
    signed = sign(to_order(NodeOrder("n0", "one", State.READY)), b"key", wall_time=100.0)
    for forged in ({**signed, "state": "draining"}, {**signed, "to": "n1"}):
        with pytest.raises(MalformedRegistration, match="signature"):
            verifier.check(forged, wall_time=100.0)
    verifier.check(signed, wall_time=100.0)
    assert from_order(signed).state is State.READY
    with pytest.raises(MalformedRegistration, match="before"):
        verifier.check(signed, wall_time=101.0)


def test_two_proxies_need_not_agree_on_the_time() -> None:
    verifier = Verifier(b"key", "sender")
    for sender, time in (("one", 110.0), ("two", 95.0), ("two", 96.0), ("one", 111.0)):
        order = to_order(NodeOrder("n0", sender, State.READY))
        verifier.check(sign(order, b"key", wall_time=time), wall_time=100.0)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"to": "n0"},
        {"to": 1, "sender": "one"},
        {"to": "n0", "sender": "one", "state": "gone"},
        {"to": "n0", "sender": "one", "role": "both"},
        {"to": "n0", "sender": "one", "more": 1},
        {"type": "P", "http_address": "h:1", "zmq_address": "h:2"},
    ],
)
def test_what_is_no_order_is_refused(message: dict[str, object]) -> None:
    with pytest.raises(MalformedOrder):
        from_order(message)
