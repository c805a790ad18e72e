"""Bad KV never becomes a token, whatever a cluster is told to do about it."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request, RequestId, Sampling
from kv_transfer.checking import CheckLevel
from kv_transfer.local.faults import Cut, Fault, Mishap, On
from tests.fakes.cluster import Cluster, next_tokens, tokens_of
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone

LEVELS = [CheckLevel.SAMPLED, CheckLevel.FULL]
ALWAYS = 60


def request(length: int = 30, name: str = "r") -> Request:
    sampling = Sampling(6, temperature=1.0, seed=3)
    return Request(RequestId(name), tuple(range(length)), sampling)


def small() -> FakeEngine:
    return FakeEngine(chunk=8)


def corrupt(cluster: Cluster, times: int = ALWAYS) -> None:
    for sink in cluster.sinks:
        sink.faults = deque([On("read", Fault.CORRUPT)] * times)


@pytest.mark.parametrize("level", LEVELS)
async def test_corrupt_kv_is_computed_anew_by_who_decodes(level: CheckLevel) -> None:
    cluster, asked = Cluster(level=level, engine=small), request()
    corrupt(cluster)
    assert await cluster.ask(asked) == alone(asked)
    assert cluster.decodes[0].loop.load_failures == {"corrupt": 1}
    assert cluster.decodes[0].legs == 1  # without another try
    assert cluster.suspects == []
    cluster.settle()
    assert cluster.leaked_blocks == 0


async def test_the_first_token_is_said_once_by_prefill_and_by_who_recomputes() -> None:
    cluster, asked = Cluster(engine=small), request()
    corrupt(cluster)
    stream = cluster.door.stream(asked)
    first = await next_tokens(stream)
    assert first + await tokens_of(stream) == alone(asked)


async def test_corrupt_kv_is_tried_elsewhere_where_a_leg_is_to_fail() -> None:
    cluster, asked = Cluster(2, 2, recompute=False, engine=small), request()
    corrupt(cluster, times=1)
    assert await cluster.ask(asked) == alone(asked)
    failures = [node.loop.load_failures for node in cluster.decodes]
    assert {"corrupt": 1} in failures
    cluster.settle()
    assert cluster.leaked_blocks == 0


async def test_where_all_kv_is_corrupt_no_answer_is_garbage() -> None:
    """A pair whose KV is bad is left alone, until there is nobody to ask (vllm#52276)."""
    cluster, asked = Cluster(x=2, recompute=False, engine=small), request()
    corrupt(cluster)
    assert await cluster.ask(asked) == alone(asked)
    lost = sorted(pair for pair, _ in cluster.health.unhealthy_pairs(now=cluster.now))
    assert lost == [("p0", "d0"), ("p1", "d0")]
    assert cluster.suspects == []
    assert cluster.decodes[0].loop.load_failures == {"corrupt": 2}
    cluster.settle()
    assert cluster.leaked_blocks == 0


@given(
    faults=st.lists(
        st.sampled_from([Fault.CORRUPT, Fault.CUT, Fault.DUPLICATE])
        | st.builds(Cut, st.integers(0, 300)),
        max_size=3,
    ),
    kind=st.sampled_from(["look", "settle", "read"]),
    recompute=st.booleans(),
    length=st.sampled_from([1, 4, 15, 16, 17, 33]),
)
async def test_any_fault_costs_no_token(
    faults: list[Mishap], kind: str, recompute: bool, length: int
) -> None:
    cluster = Cluster(2, 2, recompute=recompute, turn_s=0.05, engine=small)
    for sink in cluster.sinks:
        sink.faults = deque(On(kind, fault) for fault in faults)  # type: ignore[arg-type]
    asked = request(length)
    assert await cluster.ask(asked) == alone(asked)
    cluster.expire()
    assert cluster.leaked_blocks == 0


async def test_the_next_turn_of_a_chat_does_not_find_what_was_corrupt() -> None:
    """Neither in the decode node's prefix cache, nor as KV that was skipped."""
    cluster, asked = Cluster(engine=small), request()
    corrupt(cluster, times=1)
    said = await cluster.ask(asked)
    longer = Request(RequestId("next"), (*asked.prompt, *said, 1, 2), asked.sampling)
    assert await cluster.ask(longer) == alone(longer)


async def test_hundreds_of_requests_over_the_same_blocks_stay_right() -> None:
    """Nothing decays (sglang#23020), no request sees another's KV (sglang#22716)."""
    cluster = Cluster(2, 2, engine=lambda: FakeEngine(blocks=24, chunk=8))
    for number in range(200):
        asked = Request(
            RequestId(f"r{number}"),
            tuple((number * 7 + place * (number % 3)) % 50 for place in range(3 + number % 40)),
            Sampling(1 + number % 5, temperature=1.0, seed=number),
        )
        assert await cluster.ask(asked) == alone(asked)
    assert all(not node.loop.load_failures for node in cluster.decodes)
    cluster.settle()
    assert cluster.leaked_blocks == 0
