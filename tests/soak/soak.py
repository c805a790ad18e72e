"""The run: a cluster, its clients, those who hurt it, and what has to hold at every truce."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.cluster import Running, running
from tests.fakes.waiting import is_seen
from tests.soak.clients import Asked, Clients
from tests.soak.mischief import Mischief
from tests.soak.questions import EngineJudge, answers, questions
from tests.soak.telling import PeaceJudge
from tests.soak.verdict import Judge, Verdict, blocks_used
from tests.soak.victims import Victim
from tests.soak.wires import Wires
from tests.soak.wishes import PARSER, wishes

BACK_S = 2.0  # how soon blocks have to be back
LATE_S = 30.0  # how long is looked whether they are late, or lost
TRUCES = 8
FEWEST = 40  # requests between two of them
LEAVERS = 6
FOLLOW_S = LOOK_AGAIN_S = 0.1
ASKING = 0.7  # of the time there is
RETRIES = "pdserve_proxy_retries_total"
HANDS = 2  # that do mischief at the same time
OPTIONS = {
    "kv_connector": "tcp",
    "kv_checksum": "full",
    "drain_timeout_s": 2.0,
    "tool_call_parser": PARSER,
}
FLAGS = (
    *("--dtype", "float32", "--threads", "1", "--device", "cpu"),
    *("--kv-connector", "tcp", "--kv-checksum", "full", "--drain-timeout-s", "2"),
)


@dataclass(slots=True)
class Soak:
    """One run of `count` requests, of which `at_once` are open.

    The nodes that are hurt have so many `ranks`, the others one, and further `flags`. With
    `wishes`, everything is asked for that can be, and first in peace.
    """

    folder: Path
    seed: int
    count: int
    at_once: int
    longest_s: float
    ranks: int = 1
    wishes: bool = False
    flags: Sequence[str] = ()
    verdict: Verdict = field(init=False)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.verdict = Verdict(self.count)

    async def run(self) -> Verdict:
        """Ask everything, hurt everybody who may be hurt, and look at what is left."""
        chance = random.Random(self.seed)
        async with running(self.folder, prefill=1, decode=1, **OPTIONS) as cluster:
            seats = asyncio.Semaphore(self.at_once)
            clients = Clients(cluster.session, cluster.url, chance, seats)
            asked, judge = await self._exam(chance, clients)
            begun = time.monotonic()
            async with self._hurt(cluster, chance) as mischief:
                await self._ask(cluster, clients, mischief, asked, begun)
                self.verdict.done += mischief.done + mischief.wires.done
                self.verdict.done += Counter(restarts=sum(v.starts for v in mischief.victims))
                self.verdict.done["retries"] = await retries(cluster)
            self.verdict.seconds = time.monotonic() - begun
            self.lines += cluster.lines
        self.verdict.judge(judge, clients.told)
        self.verdict.read(self.lines)
        return self.verdict

    async def _exam(
        self, chance: random.Random, clients: Clients
    ) -> tuple[Sequence[Asked], Judge]:
        """What is asked, and who knows the answers."""
        if not self.wishes:
            asked = questions(self.count, chance)
            expected = await asyncio.to_thread(answers, self.folder, asked)
            return asked, EngineJudge(self.folder, asked, expected)
        wished, in_peace = wishes(self.count, chance), replace(clients, told={})
        await asyncio.gather(*(in_peace.ask(one, leaves=False) for one in wished))
        self.verdict.done["refused in peace too"] = in_peace.failures
        return wished, PeaceJudge(wished, in_peace.told)

    @asynccontextmanager
    async def _hurt(self, cluster: Running, chance: random.Random) -> AsyncGenerator[Mischief]:
        facts = cluster.cluster.proxy.facts
        assert facts is not None
        wires = Wires(random.Random(chance.random()))
        victims = [
            Victim(
                f"{role}-hurt",
                role,
                self.folder,
                facts["discovery_address"],
                lambda name, line: self.lines.append(f"{name} | {line}"),
                (*FLAGS, "--tensor-parallel-size", str(self.ranks), *self.flags),
            )
            for role in ("prefill", "decode")
        ]
        mischief = Mischief(victims, wires, random.Random(chance.random()), self.ranks)
        async with aclosing(wires), asyncio.TaskGroup() as group:
            tasks = [group.create_task(victim.run()) for victim in victims]
            tasks.append(group.create_task(follow(wires, victims)))
            tasks += [group.create_task(hand) for hand in mischief.hands(HANDS)]
            try:
                yield mischief
            finally:
                for task in tasks:
                    task.cancel()

    async def _ask(
        self,
        cluster: Running,
        clients: Clients,
        mischief: Mischief,
        asked: Sequence[Asked],
        begun: float,
    ) -> None:
        """In parts, with a truce behind each: some clients leave, and all blocks come back."""
        part = max(FEWEST, -(-len(asked) // TRUCES))
        for start in range(0, len(asked), part):
            if time.monotonic() - begun > self.longest_s:
                rest = len(asked) - start
                self.verdict.failed.append(f"{rest} were not asked: the time was over")
                return
            mischief.war()
            some = asked[start : start + part]
            some, leavers = some[:-LEAVERS], some[-LEAVERS:]
            await self._at_their_time(clients, some, mischief)
            await asyncio.gather(*(clients.ask(one, leaves=True) for one in leavers))
            await self._come_back(cluster, start + part)

    async def _at_their_time(
        self, clients: Clients, some: Sequence[Asked], mischief: Mischief
    ) -> None:
        """Evenly over the time there is, as far as there are seats; the last end in peace."""
        gap_s = ASKING * self.longest_s / self.count
        async with asyncio.TaskGroup() as group:
            for one in some:
                group.create_task(clients.ask(one))
                await asyncio.sleep(gap_s)
            await mischief.truce()

    async def _come_back(self, cluster: Running, number: int) -> None:
        """Who does not answer at all is no living node."""
        used = {"nobody was asked": 1.0}

        async def is_calm() -> bool:
            nonlocal used
            addresses = [node["http_address"] for node in await cluster.nodes()]
            used = await blocks_used(cluster.session, addresses)
            return not any(used.values())

        if await is_seen(is_calm, BACK_S):
            return
        late, begun = used, time.monotonic()
        came = await is_seen(is_calm, LATE_S)
        ever = f"back {time.monotonic() - begun:.1f} s later" if came else "never back"
        busy = f"load {os.getloadavg()[0]:.0f}"
        self.verdict.leaked.append(f"after {number} requests: {late}, {ever} ({busy})")


async def retries(cluster: Running) -> int:
    """How often the proxy has begun a choice again."""
    async with cluster.session.get(f"{cluster.url}/metrics") as said:
        families = text_string_to_metric_families(await said.text())
        samples = [sample for family in families for sample in family.samples]
    return round(sum(one.value for one in samples if one.name == RETRIES))


async def follow(wires: Wires, victims: Sequence[Victim]) -> None:
    """The wires listen where the victims do, whichever processes they are."""
    while True:
        await wires.listen({pid for victim in victims for pid in victim.pids()})
        await asyncio.sleep(FOLLOW_S)
