"""Many more requests at once than there is room for: all are answered, and nothing is left."""

import asyncio
from random import Random

import pytest

from engine.request import Request, RequestId, Sampling
from proxy.errors import RETRY_AFTER_S, Cause, NodeFailed
from tests.fakes.cluster import Cluster, next_tokens, tokens_of
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.node import Ill
from tests.fakes.sick import Sick

REQUESTS, FEWER, LEAVING = 1024, 256, 150
PATIENCE_S = 60
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


@pytest.mark.parametrize("seed", range(4))
async def test_a_burst_of_long_prompts_whose_clients_leave_leaves_nothing(seed: int) -> None:
    """TensorRT-LLM#13713: after it nothing was ever answered again, while /health said 200."""
    random, cluster = Random(seed), Cluster(1 + seed % 2, 2, engine=small, turn_s=TURN_S)
    asked = [long_request(number) for number in range(LEAVING)]
    tasks = [asyncio.create_task(cluster.ask(one)) for one in asked]
    leaving = random.sample(tasks, LEAVING)
    while leaving:
        for task in leaving[: random.randrange(8)]:
            leaving.remove(task)
            task.cancel()
        await asyncio.sleep(0)
    said = await asyncio.gather(*tasks, return_exceptions=True)
    for one, answer in zip(asked, said, strict=True):
        assert isinstance(answer, asyncio.CancelledError) or answer == alone(one)
    assert sum(isinstance(one, asyncio.CancelledError) for one in said) > LEAVING / 2
    cluster.settle(0)  # nobody waits for a lease to end
    assert cluster.leaked_blocks == 0
    assert cluster.suspects == []
    for source, sink in (node.halves for node in cluster.nodes.values()):
        assert source.book.num_open == sink.book.num_open == 0
    cluster.beat()
    again = [long_request(number) for number in range(LEAVING, LEAVING + 9)]
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*map(cluster.ask, again)) == [alone(one) for one in again]


def long_request(number: int) -> Request:
    """Only one fits into a node at a time."""
    prompt = tuple((number + place) % 50 for place in range(60 + number % 25))
    return Request(RequestId(f"long{number}"), prompt, Sampling(4, seed=number))


@pytest.mark.parametrize("prefill_dies", [False, True])
async def test_answers_that_outgrow_a_decode_node_fetch_their_kv_once(
    *, prefill_dies: bool
) -> None:
    """sglang#6857, vllm#53250: KV that has arrived is given up for want of blocks."""

    def tight() -> FakeEngine:
        return FakeEngine(blocks=14, seats=4, watermark=0.0)

    cluster = Cluster(1, 1, decode_engine=tight, turn_s=TURN_S)
    prefill, decode = cluster.prefills[0], cluster.decodes[0]
    asked = [Request(RequestId(f"r{n}"), (n,) * 8, Sampling(30)) for n in range(8)]
    streams = [cluster.pipeline.stream(one) for one in asked]
    said = [await next_tokens(stream) for stream in streams]
    tasks = [asyncio.create_task(tokens_of(stream)) for stream in streams]
    assert decode.engine.load.preemptions > 0
    if prefill_dies:
        prefill.suffer(Ill.KILL)
    async with asyncio.timeout(PATIENCE_S):
        rest = await asyncio.gather(*tasks)
    assert [a + b for a, b in zip(said, rest, strict=True)] == [alone(one) for one in asked]
    if not prefill_dies:
        assert sum("confirmed" in line for line in cluster.journal) == len(asked)
        assert sum("settle" in line for line in cluster.journal) == len(asked)
        assert (prefill.legs, decode.legs) == (len(asked), len(asked))
        assert not decode.loop.load_failures
    cluster.settle()
    assert cluster.leaked_blocks == 0
