"""Ranks share out all there is, each part to one of them, as both ends of a hand-over say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.paged import Span
from engine.attention.plan import BlockCopies, LogprobRequest, Plan, RowSampling, SamplingPlan
from engine.ranks.messages import (
    PLACEHOLDER,
    ClearBehind,
    ComputeLogits,
    RankMessage,
    ReceiveTokens,
    RunHead,
    RunPlan,
    decode,
    encode,
)
from engine.sharding.shard import Shard, divides_evenly
from kv_transfer.layout import KvLayout

sizes = st.integers(1, 9)


@given(size=sizes, count=st.integers(0, 100))
def test_every_part_goes_to_one_rank(size: int, count: int) -> None:
    parts = [Shard(rank, size).part(count) for rank in range(size)]
    assert [one for part in parts for one in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(size=sizes, heads=st.integers(1, 16))
def test_heads_lie_where_the_layout_says(size: int, heads: int) -> None:
    """What a peer reads from a rank's memory is what that rank keeps there."""
    layout = KvLayout("float32", 16, heads, (1,) * size, size)
    if divides_evenly(heads, size):
        for rank in range(size):
            assert Shard(rank, size).heads(heads) == layout.heads_of(rank)


@pytest.mark.parametrize(("heads", "size", "goes"), [(4, 2, True), (2, 4, True), (3, 2, False)])
def test_one_number_divides_the_other(heads: int, size: int, goes: bool) -> None:
    assert divides_evenly(heads, size) is goes


numbers = st.lists(st.integers(0, 1 << 20))
adapters = st.none() | st.integers(0, 3)
spans = st.lists(
    st.builds(Span, st.integers(0, 99), st.integers(1, 9), numbers, adapters, numbers),
    max_size=3,
)


draws = st.lists(st.just(RowSampling(0.9, 3, 0.5, 0.1, (1, 2), 7)), min_size=1, max_size=3)
drawn = st.none() | st.builds(SamplingPlan, draws, st.none(), st.just([LogprobRequest(0, 1)]))
sources = st.lists(st.integers(-1, 99))

pairs = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=3)
copies = st.builds(BlockCopies, pairs, pairs)


@given(plan=st.builds(Plan, numbers, spans, spans, numbers, drawn, sources, copies))
def test_a_batch_is_told_as_it_is(plan: Plan) -> None:
    """But for how tokens are drawn, which the rank that leads does for all."""
    told = decode(encode(RunPlan.of(plan)))
    assert isinstance(told, RunPlan)
    sampling = plan.sampling and SamplingPlan([PLACEHOLDER] * len(plan.sampling.draws))
    assert told.read() == plan._replace(sampling=sampling)


@given(
    plan=st.builds(Plan, numbers, spans, spans, numbers, st.none(), sources, copies),
    rows=st.lists(st.builds(range, st.integers(0, 1 << 20), st.integers(0, 1 << 20))),
    again=st.booleans(),
)
def test_a_pass_of_the_head_is_told_as_it_is(
    plan: Plan, rows: list[range], again: bool
) -> None:
    told = decode(encode(RunHead.of(plan, rows, again=again)))
    assert isinstance(told, RunHead)
    assert (told.plan.read(), told.read_rows(), told.again) == (plan, rows, again)


@pytest.mark.parametrize("message", [ComputeLogits(3), ClearBehind(5, 2), ReceiveTokens(4)])
def test_orders_are_told_as_they_are(message: RankMessage) -> None:
    assert decode(encode(message)) == message
