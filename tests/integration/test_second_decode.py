"""A prompt that was run once is not run again because its decode node is full, or dies."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from api.generator import Event, Leg
from decode_node.worker import NO_ROOM_S, STANDSTILL_S
from discovery.registration import Role
from engine.request import Request, RequestId, Sampling
from kv_transfer.local.faults import Fault
from kv_transfer.wire import BEAT_S, SILENCE_S
from proxy.errors import NodeFailed
from tests.fakes.cluster import Cluster, next_tokens, tokens_of
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.node import FakeNode, Ill

PROMPT = tuple(range(14))
TURNS = 20
PATIENCE_S = 60


def small() -> FakeEngine:
    return FakeEngine(blocks=10, chunk=4)


def request(name: str = "r", index: int = 0) -> Request:
    return Request(RequestId(name), PROMPT, Sampling(8, seed=7, sample_index=index))


async def fill(node: FakeNode) -> AsyncGenerator[Event]:
    """Take nearly all its blocks, until closed."""
    most = Request(RequestId("full"), tuple(range(100, 132)), Sampling(2))
    stream = node.generate(most, Leg(hold=True, keep_open=True))
    await next_tokens(stream)
    return stream


async def wait(cluster: Cluster, seconds: float) -> None:
    """Long steps of time would look like silence."""
    until = cluster.now + seconds
    while cluster.now < until:
        cluster.now += BEAT_S
        cluster.beat()
        for node in cluster.nodes.values():
            node.tick()
        for _ in range(TURNS):
            await asyncio.sleep(0)


def hold_pulls(cluster: Cluster) -> None:
    """Let each pull begin, and not end."""
    for sink in cluster.sinks:
        sink.faults = deque([None] * 3 + [Fault.DELAY] * 1_000_000)


def let_pulls_go(cluster: Cluster) -> None:
    for sink in cluster.sinks:
        sink.faults.clear()


def legs(cluster: Cluster) -> dict[str, int]:
    return {name: node.legs for name, node in cluster.nodes.items()}


class TestNoRoom:
    async def test_another_node_fetches_what_was_computed_once(self) -> None:
        cluster = Cluster(1, 2, engine=small)
        full = await fill(cluster.decodes[0])
        asked = asyncio.create_task(cluster.ask(request()))
        await wait(cluster, NO_ROOM_S - BEAT_S)
        assert legs(cluster) == {"p0": 1, "d0": 2, "d1": 0}
        await wait(cluster, 3 * BEAT_S)
        assert await asked == alone(request())
        assert legs(cluster) == {"p0": 1, "d0": 2, "d1": 1}
        assert not cluster.suspects  # to be full is no fault
        await full.aclose()
        cluster.settle()
        assert cluster.leaked_blocks == 0

    async def test_a_node_on_trial_that_is_full_may_be_tried_again_at_once(self) -> None:
        """Half open, it was sent one call, which has gone elsewhere."""
        cluster = Cluster(1, 2, engine=small)
        full = await fill(cluster.decodes[0])
        d0, d1 = (cluster.registry.find(name) for name in ("d0", "d1"))
        assert d0
        assert d1
        began = cluster.now
        for one in (d0, d1):
            cluster.health.record_failure(
                NodeFailed(one.node_id, "ill"), begun=began, now=began
            )
        await wait(cluster, 2.0)
        asked = asyncio.create_task(cluster.ask(request()))
        await wait(cluster, NO_ROOM_S + 2 * BEAT_S)
        assert legs(cluster) == {"p0": 1, "d0": 2, "d1": 1}
        decodes = cluster.registry.nodes(Role.DECODE, now=cluster.now)
        well = cluster.health.healthy(decodes, now=cluster.now)
        assert "d0" in [one.node_id for one in well]
        assert await asked == alone(request())
        await full.aclose()
        cluster.settle()
        assert cluster.leaked_blocks == 0

    async def test_where_all_are_full_the_last_one_waits(self) -> None:
        cluster = Cluster(1, 2, engine=small)
        first, second = [await fill(node) for node in cluster.decodes]
        asked = asyncio.create_task(cluster.ask(request()))
        await wait(cluster, 2 * NO_ROOM_S + 1)
        assert not asked.done()
        assert legs(cluster) == {"p0": 1, "d0": 2, "d1": 2}
        await second.aclose()
        await wait(cluster, 1)
        assert await asked == alone(request())
        assert legs(cluster) == {"p0": 1, "d0": 2, "d1": 2}
        await first.aclose()
        cluster.settle()
        assert cluster.leaked_blocks == 0

    async def test_where_nothing_moves_for_long_the_kv_is_let_go(self) -> None:
        """The last that is asked has the standstill rule; whoever waits for us gets room."""
        cluster = Cluster(1, 2, engine=small)
        full = [await fill(node) for node in cluster.decodes]
        asked = asyncio.create_task(cluster.ask(request()))
        await wait(cluster, NO_ROOM_S + STANDSTILL_S + 1)
        assert legs(cluster)["p0"] == 2
        for stream in full:
            await stream.aclose()
        await wait(cluster, 1)
        assert await asked == alone(request())
        cluster.settle()
        assert cluster.leaked_blocks == 0

    async def test_a_lone_node_is_waited_for(self) -> None:
        cluster = Cluster(1, 1, engine=small)
        full = await fill(cluster.decodes[0])
        asked = asyncio.create_task(cluster.ask(request()))
        await wait(cluster, 2 * NO_ROOM_S)
        assert legs(cluster) == {"p0": 1, "d0": 2}
        await full.aclose()
        await wait(cluster, 1)
        assert await asked == alone(request())
        assert legs(cluster) == {"p0": 1, "d0": 2}
        cluster.settle()
        assert cluster.leaked_blocks == 0

    async def test_every_choice_of_a_request_moves(self) -> None:
        cluster = Cluster(1, 2, engine=small)
        full = await fill(cluster.decodes[0])
        choices = [request(str(index), index) for index in range(3)]
        asked = asyncio.gather(*map(cluster.ask, choices))
        await wait(cluster, NO_ROOM_S + 2)
        assert await asked == [alone(one) for one in choices]
        assert legs(cluster)["p0"] == len(choices)
        await full.aclose()
        cluster.settle()
        assert cluster.leaked_blocks == 0

    @pytest.mark.parametrize("turns", range(0, 60, 3))
    async def test_who_leaves_while_another_is_asked_leaves_nothing(self, turns: int) -> None:
        cluster = Cluster(1, 2, engine=small)
        full = await fill(cluster.decodes[0])
        hold_pulls(cluster)
        asked = asyncio.create_task(cluster.ask(request()))
        await wait(cluster, NO_ROOM_S - BEAT_S)
        cluster.now += 2 * BEAT_S
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await full.aclose()
        let_pulls_go(cluster)
        cluster.settle(seconds=0)
        assert cluster.leaked_blocks == 0


class TestDeath:
    @pytest.mark.parametrize("ill", [Ill.KILL, Ill.CUT])
    async def test_before_the_first_token(self, ill: Ill) -> None:
        cluster = Cluster(1, 2, engine=small)
        cluster.decodes[0].script[2] = ill
        assert await cluster.ask(request()) == alone(request())
        assert legs(cluster) == {"p0": 1, "d0": 1, "d1": 1}
        assert cluster.suspects == ["d0"]
        cluster.expire()
        assert cluster.leaked_blocks == 0

    @pytest.mark.parametrize("ill", [Ill.KILL, Ill.CUT])
    async def test_after_prefills_token(self, ill: Ill) -> None:
        cluster = Cluster(1, 2, engine=small)
        hold_pulls(cluster)
        stream = cluster.pipeline.stream(request())
        said = await next_tokens(stream)
        let_pulls_go(cluster)
        cluster.decodes[0].suffer(ill)
        said += await tokens_of(stream)
        assert said == alone(request())
        assert legs(cluster) == {"p0": 1, "d0": 1, "d1": 1}
        cluster.expire()
        assert cluster.leaked_blocks == 0

    async def test_after_decodes_token_it_is_another_try(self) -> None:
        cluster = Cluster(1, 2, engine=small)
        stream = cluster.pipeline.stream(request())
        said = await next_tokens(stream, 3)
        cluster.decodes[0].suffer(Ill.KILL)
        said += await tokens_of(stream)
        assert said == alone(request())
        assert legs(cluster) == {"p0": 2, "d0": 1, "d1": 1}
        cluster.expire()
        assert cluster.leaked_blocks == 0

    async def test_of_all_in_turn_ends_in_as_many_tries_as_there_may_be(self) -> None:
        cluster = Cluster(1, 3, engine=small)
        for node in cluster.decodes[:2]:
            node.script[2] = Ill.KILL
        assert await cluster.ask(request()) == alone(request())
        assert legs(cluster) == {"p0": 1, "d0": 1, "d1": 1, "d2": 1}
        cluster.expire()
        assert cluster.leaked_blocks == 0

    async def test_a_ticket_that_runs_out_meanwhile_is_computed_where_it_was_to_go(
        self,
    ) -> None:
        cluster = Cluster(1, 2, engine=small)
        hold_pulls(cluster)
        stream = cluster.pipeline.stream(request())
        said = await next_tokens(stream)
        cluster.now += SILENCE_S
        cluster.decodes[0].suffer(Ill.KILL)
        let_pulls_go(cluster)
        said += await tokens_of(stream)
        assert said == alone(request())
        assert legs(cluster) == {"p0": 1, "d0": 1, "d1": 1}
        cluster.expire()
        assert cluster.leaked_blocks == 0


def one_attempt_did(cluster: Cluster, without: str) -> None:
    """One leg of each kind answered it, although that node was lost; nothing is left of it."""
    assert sum(legs(cluster).values()) == 2
    assert cluster.suspects == [without]
    cluster.expire()
    assert cluster.leaked_blocks == 0


class TestPrefillAfterwards:
    @pytest.mark.parametrize("ill", [Ill.KILL, Ill.CUT])
    async def test_nobody_needs_it_once_its_kv_has_arrived(self, ill: Ill) -> None:
        """It dies in the moment in which decode resumes, and nobody has heard of that yet."""
        cluster = Cluster(2, 2, engine=small)
        stream = cluster.pipeline.stream(request())
        said = await next_tokens(stream)
        while not cluster.decodes[0].engine.load.running:
            cluster.decodes[0].tick()
        [used] = [node for node in cluster.prefills if node.legs]
        used.suffer(ill)
        said += await tokens_of(stream)
        assert said == alone(request())
        one_attempt_did(cluster, without=used.node_id)

    async def test_where_it_has_not_decode_computes_it(self) -> None:
        cluster = Cluster(2, 1, engine=small)
        hold_pulls(cluster)
        stream = cluster.pipeline.stream(request())
        said = await next_tokens(stream)
        [used] = [node for node in cluster.prefills if node.legs]
        used.suffer(Ill.KILL)
        let_pulls_go(cluster)
        said += await tokens_of(stream)
        assert said == alone(request())
        one_attempt_did(cluster, without=used.node_id)

    async def test_what_became_of_its_kv_is_not_waited_for_for_ever(self) -> None:
        """Decode lives, and can say nothing: it stands still."""
        cluster = Cluster(2, 1, engine=small)
        hold_pulls(cluster)
        pipeline = replace(cluster.pipeline, orphan_wait_s=0.01)
        stream = pipeline.stream(request())
        said = await next_tokens(stream)
        [used] = [node for node in cluster.prefills if node.legs]
        used.suffer(Ill.CUT)
        cluster.decodes[0].suffer(Ill.STALL)
        rest = asyncio.create_task(tokens_of(stream))
        async with asyncio.timeout(PATIENCE_S):
            while not all(node.legs for node in cluster.prefills):  # noqa: ASYNC110
                await asyncio.sleep(0)
        cluster.decodes[0].wake()
        let_pulls_go(cluster)
        said += await rest
        assert said == alone(request())
        assert [node.legs for node in cluster.prefills] == [1, 1]
        cluster.expire()
        assert cluster.leaked_blocks == 0
