"""Of two nodes that are told to leave at two workers, at one moment, not both go."""

import asyncio
from dataclasses import dataclass, field

from discovery.registration import Registration, Role, State
from discovery.registry import Registry
from proxy.admin.drain_lock import DrainLock
from proxy.workers.api import QueryHandler, UpdateHandler


@dataclass
class Beside:
    """Two workers; what one puts is at both when `put` returns."""

    all: "list[Beside]"
    update_handlers: dict[str, UpdateHandler] = field(default_factory=dict)
    query_handlers: dict[str, QueryHandler] = field(default_factory=dict)

    async def put(self, kind: str, name: str, value: bytes | None) -> None:
        await asyncio.sleep(0)
        for one in self.all:
            one.update_handlers[kind](name, value)

    async def ask(self, kind: str, subject: str = "") -> tuple[bytes, ...]:
        return ()


def two() -> tuple[DrainLock, DrainLock]:
    workers = list[Beside]()
    workers += [Beside(workers), Beside(workers)]
    one, other = (DrainLock(Registry(), beside, lambda: 1.0) for beside in workers)
    return one, other


async def test_each_sees_whom_the_other_is_asking() -> None:
    one, other = two()
    async with one.turn("d:0") as first:
        async with other.turn("d:1") as second:
            assert (first, second) == (frozenset(), frozenset({"d:0"}))
        async with other.turn("d:0") as same:
            assert same == frozenset()
    async with other.turn("d:1") as later:
        assert later == frozenset()


async def test_of_two_at_one_worker_the_second_waits() -> None:
    one, _ = two()
    seen = list[str]()

    async def leave(address: str) -> None:
        async with one.turn(address) as others:
            assert not others
            seen.append(address)
            await asyncio.sleep(0)
            seen.append(address)

    await asyncio.gather(leave("d:0"), leave("d:1"))
    assert seen == ["d:0", "d:0", "d:1", "d:1"]


async def test_who_has_left_takes_no_work_from_any_worker() -> None:
    one, other = two()
    said = Registration(Role.DECODE, "d:0", "d:9", "d0")
    for known in (one, other):
        known.registry.apply(said, now=1.0)
    await one.mark_drained("d:0", "another process")
    assert [node.registration.state for node in other.registry.all()] == [State.READY]
    await one.mark_drained("d:0", "d0")
    assert [node.registration.state for node in other.registry.all()] == [State.DRAINING]
