"""What is done to nodes, one of each kind at a time, so that a pair is always well."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import aiohttp

from tests.chaos.workers import ADMIN, Workers
from tests.fakes.waiting import LOOK_AGAIN_S, is_seen
from tests.soak.mischief import DOOR, ENGINE
from tests.soak.victims import Victim

PAUSE_S = (1.0, 6.0)
STOP_S = (1.5, 4.0)  # more than a lease
LONG_STOP_S = 11.0  # more than the proxy waits
AWAY_S = (1.0, 4.0)  # drained, or in the other role
WORKER_S = (15.0, 30.0)
BACK_S = 180.0  # a machine that is busy with all else
PATIENCE_S = 20.0
OTHER = {"prefill": "decode", "decode": "prefill"}
Deed = Callable[[Victim], Awaitable[None]]
Hurt = TypeVar("Hurt")


class NotBack(Exception):
    """A node that was let go is not well again."""


@dataclass(slots=True)
class Operator:
    """Talks to the proxy as an operator does, whose connection may be cut too."""

    session: aiohttp.ClientSession
    url: str

    async def post(self, address: str, deed: str, **body: object) -> None:
        """Raises NotBack where it is refused; told twice, it is done once."""
        url = f"{self.url}/instances/{address}/{deed}"
        status, said = await self._call("POST", url, json=body, headers={"X-API-Key": ADMIN})
        if status not in (200, 202):
            raise NotBack(f"{deed} of {address} was refused: {status} {said}")

    async def nodes(self) -> dict[str, dict[str, Any]]:
        """By address."""
        _, said = await self._call("GET", f"{self.url}/status")
        return {node["http_address"]: node for node in said["nodes"]}

    async def in_flight(self) -> float:
        """At all workers together."""
        _, said = await self._call("GET", f"{self.url}/status")
        return float(said["requests_in_flight"])

    async def well(self, address: str, role: str) -> None:
        """Wait until it takes work in this role; raises NotBack."""

        async def holds() -> bool:
            return _is_well((await self.nodes()).get(address), role)

        if not await is_seen(holds, BACK_S):
            node = (await self.nodes()).get(address)
            raise NotBack(f"no {role} node after {BACK_S:g} s: {node}")

    async def _call(self, method: str, url: str, **options: Any) -> tuple[int, Any]:  # noqa: ANN401
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        for _ in range(5):
            try:
                call = self.session.request(method, url, timeout=timeout, **options)
                async with call as answer:
                    return answer.status, await answer.json()
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(LOOK_AGAIN_S)
        raise NotBack(f"nobody answers {method} {url}")


def _is_well(node: dict[str, Any] | None, role: str) -> bool:
    return (
        node is not None
        and node["role"] == role
        and node["state"] == "ready"
        and node["breaker"] == "closed"
    )


@dataclass(slots=True)
class Deeds:
    """Hands that go on until `over`; `done` counts what they did."""

    operator: Operator
    chance: random.Random
    over: asyncio.Event = field(default_factory=asyncio.Event)
    done: Counter[str] = field(default_factory=Counter)

    async def hurt_one_of(self, kind: Sequence[Victim]) -> None:
        """A hand: one node after another, each until it is well; raises NotBack."""
        deeds: Sequence[Deed] = (
            *(self._kill, self._kill, self._stop, self._stop_for_long),
            *(self._restart, self._drain, self._flip),
        )

        async def well(victim: Victim) -> None:
            await well_again(victim, self.operator)

        pause = partial(goes_on, self.over, self.chance, PAUSE_S)
        await hurt_in_turn(kind, deeds, well, pause, self.chance)

    async def kill_workers(self, workers: Workers) -> None:
        """Another hand."""
        while await goes_on(self.over, self.chance, WORKER_S):
            self.done["kill -9 proxy worker"] += workers.kill_one(self.chance)

    async def _kill(self, victim: Victim) -> None:
        number = self.chance.choice([DOOR, ENGINE])
        self.done[f"kill -9 {victim.role} {'engine' if number else 'door'}"] += 1
        pids = victim.pids()
        victim.kill(number)
        await _gone(victim, pids)

    async def _restart(self, victim: Victim) -> None:
        self.done[f"SIGTERM {victim.role}"] += 1
        pids = victim.pids()
        victim.restart()
        await _gone(victim, pids)

    async def _stop(self, victim: Victim) -> None:
        await self._stopped(victim, self.chance.uniform(*STOP_S))

    async def _stop_for_long(self, victim: Victim) -> None:
        await self._stopped(victim, LONG_STOP_S)

    async def _stopped(self, victim: Victim, seconds: float) -> None:
        number = self.chance.choice([DOOR, ENGINE])
        self.done[f"SIGSTOP {victim.role} {'engine' if number else 'door'}"] += 1
        victim.stop(number)
        try:
            await asyncio.sleep(seconds)
        finally:
            victim.go_on()

    async def _drain(self, victim: Victim) -> None:
        self.done[f"drain {victim.role}"] += 1
        await self.operator.post(address_of(victim), "drain")
        await asyncio.sleep(self.chance.uniform(*AWAY_S))
        await self.operator.post(address_of(victim), "undrain")

    async def _flip(self, victim: Victim) -> None:
        """There, and back."""
        self.done[f"role of {victim.role}"] += 1
        address, other = address_of(victim), OTHER[victim.role]
        await self.operator.post(address, "role", role=other)
        await self.operator.well(address, other)
        await asyncio.sleep(self.chance.uniform(*AWAY_S))
        await self.operator.post(address, "role", role=victim.role)


async def hurt_in_turn(
    kind: Sequence[Hurt],
    deeds: Sequence[Callable[[Hurt], Awaitable[None]]],
    well: Callable[[Hurt], Awaitable[None]],
    go_on: Callable[[], Awaitable[bool]],
    chance: random.Random,
) -> None:
    """One after another, each until it is `well`; each deed comes up before any again."""
    left = list[Callable[[Hurt], Awaitable[None]]]()
    while await go_on():
        left = left or chance.sample(deeds, len(deeds))
        one = chance.choice(kind)
        await left.pop()(one)
        await well(one)


async def goes_on(
    over: asyncio.Event, chance: random.Random, pause_s: tuple[float, float]
) -> bool:
    """After a pause, unless it is over before that."""
    try:
        await asyncio.wait_for(over.wait(), chance.uniform(*pause_s))
    except TimeoutError:
        return True
    return False


def address_of(victim: Victim) -> str:
    """Where its HTTP door is, of the process that runs."""
    facts = victim.child.facts if victim.child else None
    assert facts is not None
    return facts["http_address"]


async def well_again(victim: Victim, operator: Operator) -> None:
    """Its process may be another one, at another address; raises NotBack."""

    async def runs() -> bool:
        return victim.is_ready

    if not await is_seen(runs, BACK_S):
        raise NotBack(f"{victim.name} does not start")
    await operator.well(address_of(victim), victim.role)


async def _gone(victim: Victim, pids: Sequence[int]) -> None:
    """Until these are no longer its processes; raises NotBack."""

    async def others() -> bool:
        return victim.pids()[:1] != pids[:1]

    if not await is_seen(others, BACK_S):
        raise NotBack(f"{victim.name} does not end")
