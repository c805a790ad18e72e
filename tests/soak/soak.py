"""The run: a cluster, its clients, those who hurt it, and what has to hold at every truce."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.e2e.cluster import USED, Running, read_metric, running
from tests.soak.clients import Clients
from tests.soak.mischief import Mischief
from tests.soak.questions import Judge, Question, answers, questions
from tests.soak.victims import Victim
from tests.soak.wires import Wires

BACK_S = 2.0  # how soon blocks have to be back
TRUCES = 8
FEWEST = 40  # requests between two of them
LEAVERS = 6
FOLLOW_S = LOOK_AGAIN_S = 0.1
ANSWER_S = 0.5
ASKING = 0.7  # of the time there is
HANDS = 2  # that do mischief at the same time
OPTIONS = {"kv_connector": "tcp", "kv_checksum": "full", "drain_timeout_s": 2.0}
FLAGS = (
    *("--dtype", "float32", "--threads", "1", "--device", "cpu"),
    *("--kv-connector", "tcp", "--kv-checksum", "full", "--drain-timeout-s", "2"),
)


@dataclass(slots=True)
class Verdict:
    """What has come of it; `is_good` is what the exit status says."""

    asked: int
    left: int = 0
    failed: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    excused: int = 0
    seconds: float = 0.0
    done: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        """Nothing failed, differed, leaked, or was not expected."""
        return not (self.failed or self.differing or self.leaked or self.tracebacks)

    def show(self) -> str:
        """All of it, for somebody who reads."""
        lines = [
            f"{self.asked} requests in {self.seconds:.0f} s, {self.left} of them left early",
            *(f"  {name}: {count}" for name, count in sorted(self.done.items())),
        ]
        for name in ("failed", "differing", "leaked", "tracebacks"):
            found: list[str] = getattr(self, name)
            lines += [f"{name}: {len(found)}", *(f"  {one}" for one in found[:20])]
        lines.append(f"excused ties: {self.excused}")
        return "\n".join([*lines, "good" if self.is_good else "NOT GOOD"])


@dataclass(slots=True)
class Soak:
    """One run of `count` requests, of which `at_once` are open."""

    folder: Path
    seed: int
    count: int
    at_once: int
    longest_s: float
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
        self._judge(asked, expected, clients)
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
                FLAGS,
            )
            for role in ("prefill", "decode")
        ]
        mischief = Mischief(victims, wires, random.Random(chance.random()))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(victim.run()) for victim in victims]
            tasks.append(group.create_task(follow(wires, victims)))
            tasks += [group.create_task(hand) for hand in mischief.hands(HANDS)]
            try:
                yield mischief
            finally:
                for task in tasks:
                    task.cancel()
        await wires.close()

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
        used, until = {"nobody was asked": 1.0}, time.monotonic() + BACK_S
        while any(used.values()) and time.monotonic() < until:
            used = await _blocks_used(cluster)
            await asyncio.sleep(LOOK_AGAIN_S)
        if any(used.values()):
            self.verdict.leaked.append(f"after {number} requests: {used}")

    def _judge(
        self, asked: Sequence[Question], expected: list[list[list[int]]], clients: Clients
    ) -> None:
        judge, verdict = Judge(self.folder), self.verdict
        for question, wanted in zip(asked, expected, strict=True):
            told = clients.told.get(question.number)
            if told is None:
                continue
            verdict.left += told.left
            if told.failure is not None:
                verdict.failed.append(f"{question.number}: {told.failure}")
                continue
            for index, (one, said) in enumerate(zip(wanted, told.choices, strict=True)):
                fair = one[: len(said)] if told.left else one
                if judge.differs(question, fair, said):
                    verdict.differing.append(f"{question.number}.{index}: {fair} is {said}")
        verdict.excused = judge.excused
        verdict.tracebacks = [line for line in self.lines if "Traceback" in line]


async def follow(wires: Wires, victims: Sequence[Victim]) -> None:
    """The wires listen where the victims do, whichever processes they are."""
    while True:
        await wires.listen({pid for victim in victims for pid in victim.pids()})
        await asyncio.sleep(FOLLOW_S)


async def _blocks_used(cluster: Running) -> dict[str, float]:
    """By every node that the proxy knows and that answers."""
    addresses = [node["http_address"] for node in await cluster.nodes()]
    answers = await asyncio.gather(*(_used(cluster, address) for address in addresses))
    return {at: used for at, used in zip(addresses, answers, strict=True) if used is not None}


async def _used(cluster: Running, address: str) -> float | None:
    patience = aiohttp.ClientTimeout(total=ANSWER_S)
    try:
        async with cluster.session.get(f"http://{address}/metrics", timeout=patience) as said:
            return read_metric(await said.text(), USED)
    except (aiohttp.ClientError, TimeoutError):
        return None
