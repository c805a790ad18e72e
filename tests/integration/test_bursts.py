"""Many more requests at once than there is room for: all are answered, and nothing is left."""

import asyncio

import pytest

from engine.request import Request, RequestId, Sampling
from proxy.errors import RETRY_AFTER_S, Cause, NodeFailed
from tests.fakes.cluster import Cluster, tokens_of
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.sick import Sick

REQUESTS, FEWER = 1024, 256
SEATS, BLOCKS, TURN_S = 4, 24, 0.001  # of each node: a few prompts at a time
TOKENS = 4 * BLOCKS


def small() -> FakeEngine:
    return FakeEngine(blocks=BLOCKS, seats=SEATS)


def request(number: int) -> Request:
    prompt = tuple(range(number % 50, number % 50 + 1 + number % 17))
    return Request(RequestId(f"r{number}"), prompt, Sampling(1 + number % 3, seed=number))


async def test_a_burst_far_beyond_all_room_is_answered_to_the_last() -> None:
    """It all stopped (sglang#10110); workers that were well said 503 (sglang#13894)."""
    cluster, asked = (
        Cluster(2, 2, engine=small, turn_s=TURN_S),
        [request(n) for n in range(REQUESTS)],
    )
    said = await asyncio.gather(*map(cluster.ask, asked))
    assert said == [alone(one) for one in asked]
    assert cluster.suspects == []
    cluster.settle()
    assert cluster.leaked_blocks == 0


@pytest.mark.parametrize("sizes", [(4, 8), (8, 4), (12, 4)])
async def test_between_nodes_that_are_not_alike_too(sizes: tuple[int, int]) -> None:
    """They failed under load only (vllm#43523, sglang#15674)."""
    prefill, decode = (
        lambda size=size: FakeEngine(blocks=TOKENS // size, seats=SEATS, block_size=size)
        for size in sizes
    )
    cluster = Cluster(2, 2, engine=prefill, decode_engine=decode, turn_s=TURN_S)
    asked = [request(number) for number in range(FEWER)]
    said = await asyncio.gather(*map(cluster.ask, asked))
    assert said == [alone(one) for one in asked]
    assert all(sink.blocks_copied for sink in cluster.sinks)
    assert not any(node.loop.load_failures for node in cluster.decodes)
    assert cluster.suspects == []
    cluster.settle()
    assert cluster.leaked_blocks == 0


async def test_who_finds_no_room_to_the_end_is_told_to_come_later() -> None:
    """It is nobody's failure: other breakers are open, and this node is full."""
    cluster = Cluster(1, 1)
    full = NodeFailed("d0", "no room for its KV in 2 s", Cause.NO_ROOM)
    with pytest.raises(NodeFailed) as failed:
        await tokens_of(Sick(cluster, {"d0": full}).pipeline().stream(request(1)))
    assert (failed.value.status, failed.value.retry_after_s) == (503, RETRY_AFTER_S)
    assert cluster.suspects == []
