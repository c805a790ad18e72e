"""A prefill and a decode node whose blocks have different sizes answer as one engine would."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from api.generator import FailedEvent, Leg
from engine.request import Request, RequestId, Sampling
from kv_transfer.local.connector import LocalSink, LocalSource
from node.identity import layout_of
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.node import node_loop

rid = RequestId("r")
prompts = st.lists(st.integers(0, 999), min_size=1, max_size=60).map(tuple)


def cluster_of(prefill: int, decode: int, chunk: int = 16) -> Cluster:
    """A node of either kind, with blocks of so many tokens."""
    return Cluster(
        engine=lambda: FakeEngine(block_size=prefill, chunk=chunk),
        decode_engine=lambda: FakeEngine(block_size=decode, chunk=chunk),
    )


@given(
    prompt=prompts,
    sizes=st.sampled_from([(4, 8), (8, 4), (1, 16), (16, 1), (3, 12), (12, 4)]),
    chunk=st.sampled_from([1, 3, 8, 64]),
    shared=st.integers(0, 60),
)
async def test_same_tokens_as_one_engine(
    prompt: tuple[int, ...], sizes: tuple[int, int], chunk: int, shared: int
) -> None:
    """`shared` leading tokens are in the caches of both nodes before the request comes."""
    cluster = cluster_of(*sizes, chunk)
    for tokens in ((*prompt[:shared], 1), prompt):
        request = Request(rid, tokens, Sampling(6))
        assert await cluster.ask(request) == alone(request)
    assert not cluster.suspects  # all of it at the first try
    cluster.expire()
    assert cluster.leaked_blocks == 0


async def test_a_prefix_hit_is_skipped_in_decodes_own_blocks() -> None:
    cluster, prompt = cluster_of(4, 8), tuple(range(32))
    await cluster.ask(Request(rid, prompt, Sampling(2)))
    assert cluster.sinks[0].blocks_copied == 8  # of four tokens each
    await cluster.ask(Request(rid, (*prompt[:30], 1, 2, 3), Sampling(2)))
    assert cluster.sinks[0].blocks_copied == 8 + 3  # 24 of 33 tokens were there


async def test_sizes_that_do_not_divide_are_never_paired() -> None:
    """Pains 29 and 30: it is known before the first request, told by name, and answered."""
    cluster, request = cluster_of(6, 4), Request(rid, tuple(range(20)), Sampling(6))
    (prefill,), (decode,) = (
        [node for node in cluster.registry.all() if node.node_id == name]
        for name in ("p0", "d0")
    )
    assert cluster.registry.misfit(prefill) == "block_size is 6 here and 4 on d0:80"
    assert cluster.registry.misfit(decode) == "block_size is 4 here and 6 on p0:80"
    assert await cluster.ask(request) == alone(request)
    assert not cluster.suspects
    assert cluster.sinks[0].blocks_copied == 0
    assert cluster.leaked_blocks == 0


async def test_kv_of_another_dtype_is_answered_with_both_names() -> None:
    """By a decode node that is asked all the same, as foreign drivers would."""
    theirs, ours = FakeEngine(), FakeEngine()
    other = msgspec.structs.replace(layout_of(theirs), dtype="float16")
    source = LocalSource("e", ("h", 1), theirs.kv_regions, "fake", float, other)
    sinks = {("h", 1): source}, ours.kv_regions, "fake", float
    sink = LocalSink(*sinks, layout=layout_of(ours))
    idle = LocalSource("d", ("d", 1), ours.kv_regions, "fake", float)
    node = node_loop(ours, idle, sink, float, recompute=False)
    ticket = source.offer("r")
    node.submit(Request(rid, (1, 2, 3), Sampling(4)), Leg(ticket=ticket), 0.0)
    news = [event for _ in range(4) for _, event in [*node.prepare(), *node.run()]]
    (failed,) = [event for event in news if isinstance(event, FailedEvent)]
    assert failed.reason == "LayoutMismatch('dtype is float16 there and bytes here')"
    assert failed.by_peer
