"""States beside KV: what is cut for another layout, and joined again, is what it was."""

from dataclasses import replace
from itertools import pairwise
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.blocks.runs import BlockRuns
from kv_transfer.blocks.sequence_mapping import SequenceMapping, map_sequences
from kv_transfer.blocks.state_mapping import map_states
from kv_transfer.layout import MOST, KvLayout, can_pull
from kv_transfer.wire import Hello, decode_from_sink, encode
from tests.fakes.sharded import Memory, layout
from tests.fakes.sharded_states import Net, write_state, wrong_states

BLOCKS = 24
nets = st.builds(
    Net,
    layers=st.integers(1, 7),
    key_heads=st.just(12),
    value_heads=st.sampled_from([12, 24]),
    key_width=st.integers(1, 3),
    value_width=st.integers(1, 3),
    taps=st.integers(1, 4),
)
sides = st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from([4, 64]))


def beside(net: Net, ranks: int, aligned: int) -> KvLayout:
    """On so many ranks, in blocks that hold some layers' states."""
    kv = layout(64, heads=12, ranks=ranks, row_bytes=6)
    return replace(net, aligned=aligned).beside(kv)


def read(cut: BlockMapping, layers: int, source: Memory, sink: Memory) -> None:
    """Both sides' blocks are their first ones. No byte of ours may be written twice."""
    theirs, ours = source.layout.block_bytes[0], sink.layout.block_bytes[0]
    for slot in range(layers):
        block, within = divmod(slot, cut.their_slots)
        there = block * theirs + within * cut.step_bytes
        block, within = divmod(slot, cut.our_slots)
        here = block * ours + within * cut.our_step
        for piece in cut.pieces:
            start, end = here + piece.our_offset, here + piece.our_offset + piece.size
            memory = sink.ranks[piece.our_rank]
            assert not any(memory[start:end])
            start_there = there + piece.their_offset
            part = source.ranks[piece.their_rank][start_there : start_there + piece.size]
            assert all(part)  # nothing that is between states
            memory[start:end] = part


@given(net=nets, one=sides, other=sides)
def test_what_is_cut_and_joined_is_what_it_was(
    net: Net, one: tuple[int, int], other: tuple[int, int]
) -> None:
    """Each byte of a state once, in both directions; none of them is zero."""
    theirs, ours = beside(net, *one), beside(net, *other)
    assert can_pull(theirs, ours) is None
    memories = [Memory(kv, BLOCKS) for kv in (theirs, ours, theirs)]
    write_state(memories[0], range(BLOCKS))
    for source, sink in pairwise(memories):
        cut = map_states(source.layout, sink.layout)
        if theirs == ours:
            assert cut is None
            return
        assert cut is not None
        read(cut, net.layers, source, sink)
        assert wrong_states(sink, range(BLOCKS)) == []
    assert memories[2].ranks == memories[0].ranks


@given(net=nets, one=sides, other=sides)
def test_pieces_are_few(net: Net, one: tuple[int, int], other: tuple[int, int]) -> None:
    cut = map_states(beside(net, *one), beside(net, *other))
    if cut is None:
        return
    (few, _), (many, _) = one, other
    assert len(cut.pieces) <= (few + many - 1) * (1 + 3 * net.taps)
    if few == many:
        assert len(cut.pieces) == few


ONE, TWO = (beside(Net(key_heads=12, value_heads=12), ranks, 4) for ranks in (1, 2))


def runs(found: BlockRuns) -> list[tuple[int, int, int]]:
    return [(run.theirs, run.ours, run.count) for run in found]


def test_blocks_are_read_as_kv_only_if_they_cannot_be_a_state() -> None:
    """Of one of our blocks of 32 tokens they may have one or two; a state has two."""
    small = structs.replace(TWO, state_blocks=2)
    way = replace(map_sequences(small, ONE), kv=BlockMapping(1, 2, 4, 4), our_states=2)
    told, into = [4, 5, 6, 7], [8, 9, 10]
    assert runs(way.kv_runs(told[:1], into, 0)) == [(4, 16, 1)]
    assert runs(way.kv_runs(told[:3], into, 0)) == [(4, 16, 1)]
    assert runs(way.kv_runs(told, into, 0)) == [(4, 16, 2)]


@given(
    tokens=st.integers(1, 300),
    sizes=st.tuples(*[st.sampled_from([3, 4, 6, 8, 12, 16])] * 2),
    states=st.integers(1, 9),
)
def test_no_block_of_a_state_is_ever_read_as_kv(
    tokens: int, sizes: tuple[int, int], states: int
) -> None:
    """However many blocks are on offer, and whatever the sizes are."""
    there, here = (-(-tokens // size) for size in sizes)
    small = gcd(*sizes)
    kv = BlockMapping(sizes[0] // small, sizes[1] // small, 4, 4)
    way = SequenceMapping(kv, kv, states, 2, 5)
    blocks, into = range(100, 100 + there + states), range(here + 2)
    for offered in range(len(blocks) + 1):
        assert way.agree(offered, len(into), sealed=False)
        found = way.kv_runs(blocks[:offered], into, 0)
        if found:
            read = max(run.theirs + run.count for run in found)
            assert read <= (100 + there) * kv.their_slots
    assert way.agree(len(blocks), len(into), sealed=True)
    found = way.kv_runs(blocks, into, 0)
    assert found.total == min(there * kv.their_slots, here * kv.our_slots)


def test_with_equal_blocks_no_kv_waits() -> None:
    way = map_sequences(ONE, TWO)
    into = range(20, 23 + TWO.state_blocks)
    assert runs(way.kv_runs([4, 5, 6], into, 0)) == [(4, 20, 3)]
    assert runs(way.kv_runs([4, 5, 6, 7], into, 0)) == [(4, 20, 3)]


@pytest.mark.parametrize(
    ("offered", "reserved", "sealed", "fits"),
    [(1, 3, False, True), (3, 3, True, True), (2, 3, True, False), (4, 3, True, False)],
)
def test_counts_are_those_of_one_prompt(
    offered: int, reserved: int, *, sealed: bool, fits: bool
) -> None:
    """Two blocks of states on both sides."""
    state = BlockMapping(1, 1, 4, 4, our_step_bytes=4)
    way = SequenceMapping(BlockMapping(), state, 2, 2, 2)
    assert way.agree(offered, reserved, sealed=sealed) is fits


def test_only_slots_that_hold_a_layer_are_read() -> None:
    way = map_sequences(ONE, TWO)
    assert all(kv.state_blocks * kv.states_per_block > 5 for kv in (ONE, TWO))
    found = way.state_runs(range(50), range(70), 0)
    assert found.total == 5
    assert way.state_runs(range(50), range(70), 5).total == 0


def test_a_claim_of_endless_states_is_read_and_refused_at_once() -> None:
    """Nothing is listed before all sizes are known to be ours."""
    names = [name for name in KvLayout.__struct_fields__ if name.startswith("state_")]
    claim = structs.replace(ONE, tensor_parallel_size=2, **dict.fromkeys(names, MOST))
    told = decode_from_sink(encode(Hello("same", claim)))
    assert isinstance(told, Hello)
    assert can_pull(ONE, told.layout) == f"state_layers is 5 there and {MOST} here"
