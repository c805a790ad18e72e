"""The run: a cluster, its clients, those who hurt it, and what has to hold at every truce."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.cluster import Running, running
from tests.fakes.waiting import is_seen
from tests.soak.clients import Clients
from tests.soak.mischief import Mischief
from tests.soak.questions import Question, answers, questions
from tests.soak.verdict import Verdict, blocks_used
from tests.soak.victims import Victim
from tests.soak.wires import Wires

BACK_S = 2.0  # how soon blocks have to be back
TRUCES = 8
FEWEST = 40  # requests between two of them
LEAVERS = 6
FOLLOW_S = LOOK_AGAIN_S = 0.1
ASKING = 0.7  # of the time there is
HANDS = 2  # that do mischief at the same time
OPTIONS = {"kv_connector": "tcp", "kv_checksum": "full", "drain_timeout_s": 2.0}
FLAGS = (
    *("--dtype", "float32", "--threads", "1", "--device", "cpu"),
    *("--kv-connector", "tcp", "--kv-checksum", "full", "--drain-timeout-s", "2"),
)


@dataclass(slots=True)
class Soak:
    """One run of `count` requests, of which `at_once` are open.

    The nodes that are hurt have so many `ranks`, the others one.
    """

    folder: Path
    seed: int
    count: int
    at_once: int
    longest_s: float
    ranks: int = 1
    verdict: Verdict = field(init=False)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.verdict = Verdict(self.count)

    async def run(self) -> Verdict:
        """Ask everything, hurt everybody who may be hurt, and look at what is left."""
        chance = random.Random(self.seed)
        asked = questions(self.count, chance)
        expected = answers(self.folder, asked)
        begun = time.monotonic()
        async with running(self.folder, prefill=1, decode=1, **OPTIONS) as cluster:
            async with self._hurt(cluster, chance) as mischief:
                seats = asyncio.Semaphore(self.at_once)
                clients = Clients(cluster.session, cluster.url, chance, seats)
                await self._ask(cluster, clients, mischief, asked, begun)
                self.verdict.done += mischief.done + mischief.wires.done
                self.verdict.done += Counter(restarts=sum(v.starts for v in mischief.victims))
            self.lines += cluster.lines
        self.verdict.seconds = time.monotonic() - begun
        self.verdict.judge(self.folder, asked, expected, clients.told)
        self.verdict.read(self.lines)
        return self.verdict

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
                (*FLAGS, "--tensor-parallel-size", str(self.ranks)),
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
        asked: Sequence[Question],
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
        self, clients: Clients, some: Sequence[Question], mischief: Mischief
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

        if not await is_seen(is_calm, BACK_S):
            self.verdict.leaked.append(f"after {number} requests: {used}")


async def follow(wires: Wires, victims: Sequence[Victim]) -> None:
    """The wires listen where the victims do, whichever processes they are."""
    while True:
        await wires.listen({pid for victim in victims for pid in victim.pids()})
        await asyncio.sleep(FOLLOW_S)
