"""The run: a proxy of several workers, two nodes of each kind, clients at their own times."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from deploy.supervisor import Facts
from tests.chaos.deeds import Deeds, NotBack, Operator, well_again
from tests.chaos.workers import CLUSTER, Workers
from tests.fakes.waiting import is_seen
from tests.soak.clients import Clients
from tests.soak.questions import EngineJudge, answers, questions
from tests.soak.verdict import Verdict, blocks_used
from tests.soak.victims import Victim
from tests.soak.wires import BEHIND

WORKERS, OF_EACH = 2, 2
BACK_S = 10.0  # a lease that nobody ends lasts for thrice as long
READY_S = 120.0
UNLIMITED = 1 << 20
IN_FLIGHT = "requests in flight"
FLAGS = (
    *("--cluster-key", CLUSTER),
    *("--dtype", "float32", "--threads", "1", "--device", "cpu"),
    *("--kv-checksum", "full", "--drain-timeout-s", "5"),
)


@dataclass(slots=True)
class Chaos:
    """One run: clients come for `seconds`, `rate` of them in each on average."""

    folder: Path
    seed: int
    seconds: float
    rate: float
    lines: list[str] = field(default_factory=list)

    async def run(self) -> Verdict:
        """Ask, hurt, and look at what is left."""
        chance = random.Random(self.seed)
        asked = questions(round(self.seconds * self.rate), chance)
        expected = await asyncio.to_thread(answers, self.folder, asked)
        verdict, begun = Verdict(len(asked)), time.monotonic()
        workers = Workers(self.folder, WORKERS, self._show)
        async with self._cluster(workers) as (operator, victims):
            seats = asyncio.Semaphore(UNLIMITED)
            clients = Clients(operator.session, operator.url, chance, seats)
            deeds = Deeds(operator, random.Random(chance.random()))
            try:
                async with asyncio.TaskGroup() as group:
                    for kind in victims:
                        group.create_task(deeds.hurt_one_of(kind))
                    group.create_task(deeds.kill_workers(workers))
                    await clients.come(asked, self.rate, clients.ask_alone)
                    deeds.over.set()
            except* NotBack as lost:
                verdict.failed += map(repr, lost.exceptions)
            verdict.done += deeds.done
            await self._look(operator, verdict)
        self._excuse(workers.cut, clients, verdict)
        verdict.seconds = time.monotonic() - begun
        verdict.judge(EngineJudge(self.folder, asked, expected), clients.told)
        verdict.read(self.lines)
        return verdict

    @asynccontextmanager
    async def _cluster(
        self, workers: Workers
    ) -> AsyncGenerator[tuple[Operator, Sequence[Sequence[Victim]]]]:
        """All of it is well when entered, and gone when left."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            group.create_task(workers.child.run())
            async with asyncio.timeout(READY_S):
                facts = await workers.child.ready
            victims = [
                [self._victim(role, number, facts) for number in range(OF_EACH)]
                for role in ("prefill", "decode")
            ]
            running = [group.create_task(one.run()) for kind in victims for one in kind]
            operator = Operator(session, f"http://{facts['http_address']}")
            try:
                for one in (one for kind in victims for one in kind):
                    await well_again(one, operator)
                yield operator, victims
            finally:
                for task in running:
                    task.cancel()
                await workers.child.stop()

    def _victim(self, role: str, number: int, facts: Facts) -> Victim:
        proxy = facts["discovery_address"]
        return Victim(f"{role}-{number}", role, self.folder, proxy, self._show, FLAGS, BEHIND)

    def _show(self, name: str, line: str) -> None:
        self.lines.append(f"{time.time():.2f} {name} | {line}")

    def _excuse(self, cut: set[int], clients: Clients, verdict: Verdict) -> None:
        """Whose own connection was cut has left, as far as we are concerned."""
        for number, told in clients.told.items():
            if told.failure and clients.ports[number] in cut:
                told.failure, told.left = None, True
                verdict.done["own connection cut"] += 1

    async def _look(self, operator: Operator, verdict: Verdict) -> None:
        """Nothing is open any more, at any worker and any node."""
        used: dict[str, float] = {"nobody was asked": 1.0}

        async def is_calm() -> bool:
            nonlocal used
            used = await blocks_used(operator.session, list(await operator.nodes()))
            used[IN_FLIGHT] = await operator.in_flight()
            return not any(used.values())

        if not await is_seen(is_calm, BACK_S):
            verdict.leaked.append(f"after {BACK_S:g} s: {used}")
