"""What is done to the hurt nodes and to the links to them, in an order drawn from a seed."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.soak.victims import Victim
from tests.soak.wires import DATA, HTTP, SIDE, Wires

PAUSE_S = (0.3, 2.0)
STALL_S = (0.2, 3.0)
STOP_S = (1.5, 4.0)  # more than a lease
LONG_STOP_S = 11.0  # more than the proxy waits
LIES = 6
DOOR, ENGINE = 0, 1
PARTS = ("door", "engine")  # and behind them other ranks
Deed = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Mischief:
    """Deeds, one after another, while they are `allowed`; `done` counts them."""

    victims: Sequence[Victim]
    wires: Wires
    chance: random.Random
    ranks: int = 1
    done: Counter[str] = field(default_factory=Counter)
    allowed: asyncio.Event = field(default_factory=asyncio.Event)
    _truce: asyncio.Event = field(default_factory=asyncio.Event)
    _busy: int = 0
    _idle: asyncio.Condition = field(default_factory=asyncio.Condition)

    def hands(self, count: int) -> list[Coroutine[Any, Any, None]]:
        """So many at once, each until cancelled."""
        return [self._run() for _ in range(count)]

    def war(self) -> None:
        """From now on all is allowed."""
        self._truce.clear()
        self.allowed.set()

    async def truce(self) -> None:
        """Nothing is done any more, and nobody is stopped, until `war`."""
        self.allowed.clear()
        self._truce.set()
        async with self._idle:
            await self._idle.wait_for(lambda: self._busy == 0)

    async def _run(self) -> None:
        deeds: list[tuple[int, Deed]] = [
            *[(3, self._kill), (1, self._restart), (4, self._stop), (1, self._stop_for_long)],
            *[(5, self._cut), (4, self._stall), (8, self._lie)],
        ]
        weights = [weight for weight, _ in deeds]
        while True:
            await self.allowed.wait()
            self._busy += 1
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            [(_, deed)] = self.chance.choices(deeds, weights)
            await deed()
            async with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    @property
    def _engines(self) -> Sequence[int]:
        """The numbers of a victim's processes behind its door."""
        return range(ENGINE, ENGINE + self.ranks)

    @staticmethod
    def _part(number: int) -> str:
        return PARTS[number] if number < len(PARTS) else "rank"

    def _victim(self) -> Victim | None:
        ready = [victim for victim in self.victims if victim.is_ready]
        return self.chance.choice(ready) if ready else None

    async def _kill(self) -> None:
        number = self.chance.choice([DOOR, *self._engines])
        if victim := self._victim():
            self.done[f"kill -9 {victim.role} {self._part(number)}"] += 1
            victim.kill(number)

    async def _restart(self) -> None:
        if victim := self._victim():
            self.done[f"restart {victim.role}"] += 1
            victim.restart()

    async def _stop(self) -> None:
        await self._stopped(self.chance.uniform(*STOP_S))

    async def _stop_for_long(self) -> None:
        await self._stopped(LONG_STOP_S)

    async def _stopped(self, seconds: float) -> None:
        number = self.chance.choice([DOOR, *self._engines, ENGINE])
        if victim := self._victim():
            self.done[f"stop {victim.role} {self._part(number)}"] += 1
            victim.stop(number)
            try:
                await asyncio.wait_for(self._truce.wait(), seconds)
            except TimeoutError:
                pass
            finally:
                victim.go_on()

    async def _cut(self) -> None:
        self.wires.cut(self.chance.choice([SIDE, DATA, DATA, HTTP]))

    async def _stall(self) -> None:
        kind = self.chance.choice([SIDE, DATA, DATA, HTTP])
        await self.wires.hold(kind, self.chance.uniform(*STALL_S))

    async def _lie(self) -> None:
        self.wires.lie(self.chance.randrange(1, LIES))
