"""A hub and its workers, joined as in life, in one process."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from dataclasses import dataclass, field

import aiohttp
import pytest
import uvloop

from discovery.registration import Registration, Role, State
from discovery.registry import Registry
from proxy.admin.drain_lock import DEAD_S, DRAIN_ASKED, LEAVING, DrainLock
from proxy.admin.node_operations import DrainRefused, DrainRequest, Operator
from proxy.admission.errors import RateLimited
from proxy.admission.limits import KeyLimits
from proxy.admission.queue import QueueEntry
from proxy.admission.rates import RateBuckets
from proxy.nodes.orders import OrderSender
from proxy.nodes.session import open_session
from proxy.workers.api import METRICS
from proxy.workers.hub import Hub, WorkerConnection
from proxy.workers.hub_client import HubClient
from proxy.workers.joining import HubListener, join_hub
from proxy.workers.messages import message_streams
from proxy.workers.metrics_pages import merge_metrics
from proxy.workers.rates import SharedRates
from proxy.workers.shared_state import SharedState
from tests.fakes.waiting import comes_true

KIND = "word"
READY, DRAINING = State.READY, State.DRAINING
SOON_S = 60.0
TURNS = 10
WORDS = 3
Tasks = set["asyncio.Task[None]"]


@dataclass
class Worker:
    """One hub client, and what was taken in over it."""

    number: int
    link: HubClient
    task: "asyncio.Task[None]"
    known: dict[str, bytes | None] = field(default_factory=dict)

    def says(self, subject: str) -> bytes:
        return f"{self.number}:{subject}".encode()

    def page(self, _: str) -> bytes:
        return b"# TYPE served_total counter\nserved_total %d\n" % (self.number + 1)


@dataclass
class Office:
    """The hub, where workers come and go."""

    hub: Hub
    listener: HubListener
    tasks: Tasks

    async def comes(self, number: int) -> Worker:
        before = self.hub.workers
        setup = await asyncio.to_thread(join_hub, self.listener.name, number)
        assert setup.settings == b"settings"
        setup.client_socket.close()
        link = HubClient(setup.connection)
        worker = Worker(number, link, asyncio.create_task(link.run()))
        self.tasks.add(worker.task)
        link.update_handlers[KIND] = worker.known.__setitem__
        link.query_handlers = {KIND: worker.says, METRICS: worker.page}
        await comes_true(lambda: self.hub.workers > before)
        await link.ask("whether it is open")
        return worker

    async def goes(self, worker: Worker) -> None:
        before = self.hub.workers
        worker.task.cancel()
        await comes_true(lambda: self.hub.workers < before)


@asynccontextmanager
async def office(patience_s: float = SOON_S) -> AsyncGenerator[Office]:
    hub, tasks = Hub(SharedState(), lambda: b"parents 1\n", patience_s, page_s=600), Tasks()
    async with AsyncExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener = stack.enter_context(closing(HubListener.open(door, b"settings")))
        tasks |= {asyncio.create_task(hub.run()), asyncio.create_task(_let_in(hub, listener))}
        try:
            yield Office(hub, listener, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _let_in(hub: Hub, listener: HubListener) -> None:
    async with aclosing(listener.accept_workers()) as workers, asyncio.TaskGroup() as tasks:
        async for number, connection in workers:
            tasks.create_task(hub.serve_worker(number, connection))


async def test_what_one_puts_all_know_when_it_is_stored_and_who_comes_late_too() -> None:
    async with office() as house:
        one, two = await house.comes(0), await house.comes(1)
        await one.link.put(KIND, "a", b"1")
        assert two.known == {"a": b"1"}
        await two.link.put(KIND, "a", b"2")
        await two.link.put(KIND, "b", b"3")
        await two.link.put(KIND, "a", None)
        assert one.known == {"a": None, "b": b"3"}
        late = await house.comes(2)
        await comes_true(lambda: late.known == {"b": b"3"})


async def test_the_hub_knows_when_all_workers_have_its_state() -> None:
    async with office() as house:
        first = await house.comes(0)
        behind = await asyncio.to_thread(join_hub, house.listener.name, 7)
        await comes_true(lambda: house.hub.workers > 1)
        house.hub.state.put(KIND, "a", b"1")
        waiting = asyncio.create_task(house.hub.up_to_date())
        await comes_true(lambda: first.known == {"a": b"1"})
        await first.link.ask("whether it has answered")
        assert not waiting.done()
        behind.client_socket.close()
        behind.connection.close()
        await waiting


async def test_a_question_is_answered_by_all_others() -> None:
    async with office() as house:
        workers = [await house.comes(number) for number in range(3)]
        assert sorted(await workers[0].link.ask(KIND, "x")) == [b"1:x", b"2:x"]
        await house.goes(workers[1])
        assert await workers[0].link.ask(KIND, "y") == [b"2:y"]
        assert await workers[0].link.ask("what nobody knows") == []


async def test_a_page_has_what_all_count_those_that_are_gone_too() -> None:
    async with office() as house:
        workers = [await house.comes(number) for number in range(3)]
        await house.goes(workers[2])
        page = merge_metrics([workers[0].page(""), *await workers[0].link.ask(METRICS)])
        assert b"served_total 6.0" in page
        assert b"parents 1.0" in page


async def test_a_worker_that_stands_still_holds_up_nobody() -> None:
    """It has come in, and says nothing more."""
    async with office(patience_s=0.5) as house:
        stands_still = await asyncio.to_thread(join_hub, house.listener.name, 7)
        await comes_true(lambda: house.hub.workers == 1)
        worker = await house.comes(0)
        for number in range(WORDS):
            await worker.link.put(KIND, str(number), b"x")
        other = await house.comes(1)
        await comes_true(lambda: len(other.known) == WORDS)
        assert await worker.link.ask(KIND, "z") == [b"1:z"]
        for one in (stands_still.client_socket, stands_still.connection):
            one.close()


async def test_a_node_of_vllm_that_one_worker_holds_is_held_by_all() -> None:
    """It cannot be told itself, so the workers tell each other."""
    async with office() as house, open_session() as session:
        workers = [await house.comes(number) for number in range(2)]
        one, other = (operator_of(worker, session) for worker in workers)
        await one.drain("v:1", DrainRequest())
        assert states(one) == states(other) == {"v:1": DRAINING, "v:2": READY}
        other.registry.apply(vllm("v:1"), now=2.0)
        assert states(other)["v:1"] is DRAINING
        with pytest.raises(DrainRefused):
            await other.drain("v:2", DrainRequest())
        await other.undrain("v:1")
        one.registry.apply(vllm("v:1"), now=3.0)
        assert states(one) == states(other) == {"v:1": READY, "v:2": READY}


async def test_a_worker_that_dies_while_it_drains_a_node_stops_no_later_drain() -> None:
    async with office() as house, open_session() as session:
        dies, stays = await house.comes(0), await house.comes(1)
        operator = operator_of(stays, session)
        lock = operator.drain_lock
        await dies.link.put(LEAVING, "v:1", DRAIN_ASKED)
        await house.goes(dies)
        with pytest.raises(DrainRefused):
            await operator.drain("v:2", DrainRequest())
        lock.clock = lambda: 1.0 + DEAD_S
        await operator.drain("v:2", DrainRequest())
        assert states(operator) == {"v:1": READY, "v:2": DRAINING}


def vllm(address: str) -> Registration:
    return Registration(Role.DECODE, address, "", model="m")


def operator_of(worker: Worker, session: aiohttp.ClientSession) -> Operator:
    registry = Registry(ttl_s=1e9)
    for address in ("v:1", "v:2"):
        registry.apply(vllm(address), now=1.0)
    shared = registry, worker.link
    lock = DrainLock(*shared, lambda: 1.0)
    return Operator(registry, OrderSender(session), worker.link, lock, lambda: 1.0)


def states(operator: Operator) -> dict[str, State]:
    return {one.node_id: one.registration.state for one in operator.registry.all()}


def test_a_word_to_a_worker_that_has_died_harms_nobody_else() -> None:
    """The hub's loop is uvloop's, whose transports raise once they have found out."""

    async def talk() -> None:
        ours, theirs = socket.socketpair()
        async with message_streams(ours) as (_, writer):
            peer, state = WorkerConnection(0, writer), SharedState()
            theirs.close()
            for _ in range(TURNS):
                state.put(KIND, "name", b"value")
                peer.send_update(state)
                peer.acked_version = peer.sent_version
                await asyncio.sleep(0)
            assert peer.acked_version == state.version == TURNS

    uvloop.run(talk())


async def test_what_a_key_has_of_its_minute_it_has_of_all_workers_together() -> None:
    async with office() as house:
        shared = list[SharedRates]()
        for number in range(2):
            rates = RateBuckets(since=time.monotonic())
            link = (await house.comes(number)).link
            shared.append(SharedRates(rates, link, str(number)))
        one, two = shared
        minute = KeyLimits(requests_per_minute=2)
        for _ in range(2):
            one.rates.begin(QueueEntry("a", minute, 0, 1), now=time.monotonic())
        await one.publish()
        with pytest.raises(RateLimited):
            two.rates.begin(QueueEntry("a", minute, 0, 1), now=time.monotonic())
        version = house.hub.state.version
        await one.publish()
        assert house.hub.state.version == version, "nothing was taken since"
