"""In each state of a hand-over, whoever ends it and whatever by: blocks are back within 2 s.

Nobody else is disturbed, the request itself goes on where there is a client left to hear it,
and what a stopped node says when it wakes up changes nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from engine.request import Request, RequestId, Sampling
from kv_transfer.local.faults import Delay, Fault, On
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.node import FakeNode, Ill

TURN_S, BACK_S, FOR_GOOD = 0.002, 2.0, Delay(1e6)
SPARE_BLOCKS = 6  # less than the victim needs, more than its neighbour grows by
LONGEST_WAY = 4000


def request(name: str, start: int, max_tokens: int) -> Request:
    return Request(RequestId(name), tuple(range(start, start + 30)), Sampling(max_tokens))


VICTIM, NEIGHBOUR = request("victim", 0, 30), request("neighbour", 100, 40)
FRESH = request("fresh", 200, 5)


def engine() -> FakeEngine:
    return FakeEngine(chunk=4, watermark=0.0)


@dataclass
class Scene:
    """A cluster in which one request is to be hit, and another is not to notice."""

    cluster: Cluster
    neighbour: "asyncio.Task[list[int]]"
    victim: "asyncio.Task[list[int]] | None" = None
    crowded: list[FakeNode] = field(default_factory=list)

    @classmethod
    async def with_neighbour(cls) -> "Scene":
        """The neighbour's hand-over is behind it."""
        cluster = Cluster(2, 2, engine=engine, turn_s=TURN_S)
        scene = cls(cluster, asyncio.create_task(cluster.ask(NEIGHBOUR)))
        await scene.until(lambda: any("arrived" in line for line in cluster.journal))
        cluster.journal.clear()
        return scene

    def ask(self) -> None:
        self.victim = asyncio.create_task(self.cluster.ask(VICTIM))

    async def until(self, true: Callable[[], object]) -> None:
        for _ in range(LONGEST_WAY):
            if true():
                return
            await asyncio.sleep(0)
        raise AssertionError("it never came to that")

    async def pass_time(self, seconds: float) -> None:
        """All living nodes make turns, whether somebody listens or not."""
        end = self.cluster.now + seconds
        while self.cluster.now < end:
            for node in self.cluster.nodes.values():
                node.tick()
            await asyncio.sleep(0)

    def crowd(self, nodes: list[FakeNode]) -> None:
        """Leave too few blocks there for the victim."""
        for node in nodes:
            load, size = node.engine.load, node.engine.info.block_size
            length = (load.free_blocks - SPARE_BLOCKS) * size
            assert node.engine.reserve(Request(RequestId("crowd"), tuple(range(length))))
        self.crowded = nodes

    def clear_out(self) -> None:
        for node in self.crowded:
            node.engine.release(RequestId("crowd"))
        for sink in self.cluster.sinks:
            sink.faults.clear()
            sink._stuck_until = self.cluster.now

    def suffer(self, *script: On) -> None:
        for sink in self.cluster.sinks:
            sink.faults = deque(script)

    def of_victim(self, node: FakeNode) -> list[RequestId]:
        """The legs of the victim that the engine of a node knows."""
        assert isinstance(node.engine, FakeEngine)
        waiting = [job.request.request_id for job in node.loop.decode._backlog]
        known = [*node.engine.sequences.known, *waiting]
        return [rid for rid in known if rid.startswith("victim")]

    def at(self, nodes: list[FakeNode]) -> FakeNode:
        """Where the victim is."""
        (node,) = [one for one in nodes if self.of_victim(one)]
        return node

    def told(self, words: str) -> bool:
        return any(words in line for line in self.cluster.journal)

    def engines(self, nodes: list[FakeNode], what: str) -> int:
        return sum(getattr(node.engine.load, what) for node in nodes)


async def queued(scene: Scene) -> None:
    scene.crowd(scene.cluster.prefills)
    scene.ask()
    await scene.until(lambda: scene.engines(scene.cluster.prefills, "waiting"))


async def filling(scene: Scene) -> None:
    scene.ask()
    prefills = scene.cluster.prefills
    await scene.until(lambda: scene.engines(prefills, "running") and scene.told("news"))


async def sealed(scene: Scene) -> None:
    """Nobody has come for it: the link is so slow."""
    scene.suffer(On("look", FOR_GOOD))
    scene.ask()
    prefills = scene.cluster.prefills
    await scene.until(lambda: scene.engines(prefills, "running"))
    await scene.until(lambda: not scene.engines(prefills, "running"))


async def held(scene: Scene) -> None:
    scene.crowd(scene.cluster.decodes)
    scene.ask()
    await scene.until(lambda: any(one.loop.decode.num_waiting for one in scene.cluster.decodes))


async def pulling(scene: Scene) -> None:
    scene.suffer(On("read", FOR_GOOD))
    scene.ask()
    await scene.until(lambda: scene.told("read from"))


async def settling(scene: Scene) -> None:
    scene.suffer(On("settle", FOR_GOOD))
    scene.ask()
    await scene.until(lambda: scene.told("settle to"))


async def decoding(scene: Scene) -> None:
    scene.ask()
    await scene.until(lambda: scene.told("arrived"))


def leave(scene: Scene) -> None:
    assert scene.victim
    scene.victim.cancel()


def end_proxy(scene: Scene) -> None:
    """Every stream is closed at once."""
    leave(scene)
    scene.neighbour.cancel()


def hit(role: str, ill: Ill) -> Callable[[Scene], None]:
    def event(scene: Scene) -> None:
        nodes = scene.cluster.prefills if role == "p" else scene.cluster.decodes
        busy = [node for node in nodes if scene.of_victim(node)]
        (busy or nodes)[0].suffer(ill)

    return event


def cut_link(scene: Scene) -> None:
    """It breaks, and the sink is told so."""
    scene.suffer(On("look", Fault.CUT), On("settle", Fault.CUT))
    for sink in scene.cluster.sinks:
        sink._stuck_until = scene.cluster.now


def silence_link(scene: Scene) -> None:
    """Nothing comes through any more, and nobody is told."""
    scene.suffer(On("look", FOR_GOOD))


STATES = [queued, filling, sealed, held, pulling, settling, decoding]
EVENTS = {
    "the client closes": leave,
    "the proxy closes": end_proxy,
    "prefill's streams break": hit("p", Ill.CUT),
    "decode's streams break": hit("d", Ill.CUT),
    "prefill is killed": hit("p", Ill.KILL),
    "decode is killed": hit("d", Ill.KILL),
    "prefill is stopped": hit("p", Ill.STALL),
    "decode is stopped": hit("d", Ill.STALL),
    "the link is cut": cut_link,
    "the link is silent": silence_link,
}
WANTED = {
    queued,
    filling,
    held,
}  # by whoever still listens: it runs, or waits for decode's room
NOT_NOTICED = (sealed, "decode is stopped")  # by the proxy, yet: another decode node may come


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
async def test_blocks_are_back(state: Callable[[Scene], object], event: str) -> None:
    scene = await Scene.with_neighbour()
    await state(scene)  # type: ignore[misc]
    cluster, before = (
        scene.cluster,
        {one for node in scene.cluster.nodes.values() for one in scene.of_victim(node)},
    )
    EVENTS[event](scene)
    await scene.pass_time(BACK_S)
    for node in cluster.nodes.values():
        if node.dead or node.stalled:
            continue
        left = before.intersection(scene.of_victim(node))
        prefills = (
            node in cluster.prefills and state not in WANTED and (state, event) != NOT_NOTICED
        )
        listened = set() if prefills else set(node._inboxes)
        assert left <= listened, f"{node.node_id} keeps {left}"
    scene.clear_out()
    await _all_is_well(scene)


async def _all_is_well(scene: Scene) -> None:
    assert scene.victim
    cluster, asked = scene.cluster, [(scene.neighbour, NEIGHBOUR), (scene.victim, VICTIM)]
    for task, one in asked:
        await asyncio.wait([task])
        assert task.cancelled() or task.result() == alone(one)
    cluster.settle(0)  # who was stopped wakes up
    cluster.beat()
    assert await cluster.ask(FRESH) == alone(FRESH)
    cluster.settle(BACK_S)
    assert cluster.leaked_blocks == 0
