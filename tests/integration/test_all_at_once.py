"""All of a node's features over one another, and things go wrong: the same tokens, no leak.

Choices, priorities, turns of a chat, drafts, tiers, fetches from other caches, full nodes,
aborts, links that fail and streams that break; drawn from a seed, so a failure is replayed.
"""

import asyncio
from collections import deque
from random import Random

import pytest

from engine.request import Request, RequestId, Sampling
from kv_transfer.checking import CheckLevel
from kv_transfer.local.faults import Cut, Fault, Mishap, On, Step
from proxy.errors import NodeFailed, NoNodeAvailable
from proxy.routing import conversations, prefix_hashes, prefixes
from tests.fakes.cluster import Cluster
from tests.fakes.drafter import Oracle
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.node import FakeNode, Ill
from tests.fakes.tiers import ScriptedDisk, put_tiers_under

LONGEST = 60  # tokens of a prompt
MOST = 20  # of an answer
PATIENCE = 100_000  # turns of the world
FAULTS = (Fault.DELAY, Fault.DROP, Fault.DUPLICATE, Fault.CUT, Fault.CORRUPT)
READS: tuple[Mishap, ...] = (Fault.DROP, Fault.CORRUPT, Cut(at_byte=90))


class Play:
    """Everything that a seed decides; `harm`: whether something goes wrong."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.harm = random.random() < 0.6
        self.cluster = Cluster(
            x=random.choice([1, 2]),
            y=random.choice([1, 2, 3]),
            engine=self.engine,
            turn_s=random.choice([0.001, 0.05]),
            level=random.choice([CheckLevel.SAMPLED, CheckLevel.FULL]),
            recompute=random.random() < 0.7,
        )
        for node in self.cluster.nodes.values():
            node.loop.decode.fetcher.least_tokens = 8
        self.chats = list[tuple[int, ...]]()
        self.answered = 0

    def engine(self) -> FakeEngine:
        random = self.random
        engine = FakeEngine(
            blocks=random.choice([24, 32, 80]),
            chunk=random.choice([4, 16, 40]),
            seats=random.choice([2, 4, 8]),
            watermark=random.choice([None, 0.0, 0.2]),
        )
        if random.random() < 0.4:
            lengths = (lambda: random.randint(1, 4)), (lambda: random.randint(0, 4))
            engine.scheduler.drafter = Oracle(*lengths)
        if random.random() < 0.6:
            odds = {"late": random.choice([0.0, 0.9]), "fails": random.choice([0.0, 0.1])}
            put_tiers_under(
                engine,
                slots=random.choice([4, 16, 64]),
                places=random.choice([8, 300]),
                disk=lambda host: ScriptedDisk(host, Random(random.random()), **odds),
                clock=lambda: self.cluster.now,
            )
        return engine

    def choices(self, name: str) -> list[Request]:
        """Of a new chat, or of the next turn of one."""
        random = self.random
        before = random.choice(self.chats) if self.chats and random.random() < 0.6 else ()
        new = tuple(random.randrange(40) for _ in range(random.randint(1, 30)))
        most, count = random.choice([1, 6, MOST]), random.choice([1, 1, 2, 4])
        priority = random.choice([-1, 0, 0])
        return [
            Request(
                RequestId(f"{name}-{index}"),
                (*before, *new)[:LONGEST],
                Sampling(most, temperature=count > 1, sample_index=index),
                priority=priority,
            )
            for index in range(count)
        ]

    async def ask(self, request: Request) -> None:
        try:
            said = await self.cluster.ask(request)
        except (NodeFailed, NoNodeAvailable):
            assert self.harm
            return
        assert said == alone(request)
        self.chats.append((*request.prompt, *said))
        self.answered += 1

    async def client(self, name: str) -> None:
        for number in range(self.random.randint(1, 4)):
            asked = self.choices(f"{name}-{number}")
            tasks = [asyncio.create_task(self.ask(one)) for one in asked]
            for _ in range(self.random.randint(0, 60)):
                await asyncio.sleep(0)
            for task in tasks:
                if self.random.random() < 0.1:
                    task.cancel()
            for end in await asyncio.gather(*tasks, return_exceptions=True):
                assert end is None or isinstance(end, asyncio.CancelledError), end

    def world(self) -> None:
        """One turn of what happens beside the requests."""
        random, nodes = self.random, list(self.cluster.nodes.values())
        if random.random() < 0.2:
            self.cluster.beat()
        for node in nodes:
            if random.random() < 0.1:
                node.tick()
        if self.harm and random.random() < 0.01:
            random.choice(nodes).sink.faults.append(self.fault())
        if self.harm and random.random() < 0.002:
            random.choice(nodes).suffer(Ill.CUT)

    def fault(self) -> Step:
        if self.random.random() < 0.5:
            return self.random.choice(FAULTS)
        return On("read", self.random.choice(READS))

    async def run(self) -> None:
        count = self.random.randint(1, 6)
        clients = asyncio.gather(*(self.client(str(number)) for number in range(count)))
        for _ in range(PATIENCE):
            if clients.done():
                break
            self.world()
            await asyncio.sleep(0)
        assert clients.done(), "it hangs"
        await clients


def is_empty(node: FakeNode) -> bool:
    """Nobody is known there any more, on either side of a hand-over."""
    engine, (source, sink), loop = node.engine, node.halves, node.loop
    assert isinstance(engine, FakeEngine)
    engine.kv.check()
    engine.sequences.check_idle()
    assert not engine.sequences.known
    assert not engine.sequences.loans
    assert not loop.has_waiting_legs
    assert loop.decode.num_waiting == loop.decode.num_pulling == 0
    return source.book.num_open == sink.book.num_open == 0


@pytest.mark.parametrize("first", range(0, 60, 10))
async def test_whatever_meets_whatever_the_tokens_are_the_same(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (prefix_hashes, conversations, prefixes):
        monkeypatch.setattr(module, "STRIDE", 8)
    answered, asked = 0, 0
    for seed in range(first, first + 10):
        play = Play(seed)
        await play.run()
        cluster = play.cluster
        for node in cluster.nodes.values():
            node.sink.faults = deque()
        cluster.settle()
        cluster.expire()
        cluster.settle()
        assert cluster.leaked_blocks == 0, seed
        assert all(is_empty(node) for node in cluster.nodes.values()), seed
        answered += play.answered
        asked += sum("ask to" in line for line in cluster.journal)
    assert answered > 50
    assert asked > 5
