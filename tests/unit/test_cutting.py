"""Whatever `can_pull` says yes to arrives byte for byte; what it says no to is named."""

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kv_transfer.api import Arrived, Sealed
from kv_transfer.blocks.mapping import map_blocks
from kv_transfer.layout import MOST, MOST_RANKS, VERSION, KvLayout, can_pull
from kv_transfer.local.connector import LocalSink, LocalSource
from kv_transfer.wire import Hello, decode_from_sink, encode
from tests.fakes.sharded import Memory, beside, layout

AT = ("source", 1)
BLOCKS = 12
sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 16])
shapes = st.fixed_dictionaries(
    {
        "heads": st.sampled_from([1, 2, 4]),
        "layers": st.integers(1, 2),
        "parts": st.integers(1, 2),
        "row_bytes": st.sampled_from([1, 3]),
    }
)
others = st.sampled_from([(0, 0, 0), (1, 1, 6), (2, 2, 3), (1, 4, 6)])
layouts = st.builds(
    lambda size, ranks, shape, more: beside(layout(size, ranks=ranks, **shape), more),
    sizes,
    st.integers(1, 6),
    shapes,
    others,
)
alike_pairs = st.tuples(shapes, others).flatmap(
    lambda both: st.tuples(
        *[
            st.builds(
                lambda size, ranks: beside(layout(size, ranks=ranks, **both[0]), both[1]),
                sizes,
                ranks_of,
            )
            for ranks_of in [st.sampled_from([1, 2, 4])] * 2
        ]
    )
)
pairs = st.one_of(alike_pairs, st.tuples(layouts, layouts))


def blocks_for(kv: KvLayout, tokens: int) -> int:
    return -(-tokens // kv.block_size)


def pull(
    source: Memory, sink: Memory, blocks: list[int], into: list[int], skip: int
) -> Arrived:
    """All of it, published block by block."""
    here = LocalSource("engine", AT, source.regions, "same", float, source.layout)
    there = LocalSink({AT: here}, sink.regions, "same", float, layout=sink.layout)
    ticket = here.offer("r")
    there.pull(ticket, into, skip)
    arrived = list[Arrived]()
    for block in blocks:
        here.extend(ticket.ticket_id, [block])
        arrived += there.poll()
    here.seal(ticket.ticket_id, Sealed(1, 7))
    for _ in range(10):
        arrived += there.poll()
    (ended,) = arrived
    return ended


@given(pair=pairs, data=st.data())
def test_what_can_be_pulled_arrives_and_nothing_else_is_touched(
    pair: tuple[KvLayout, KvLayout], data: st.DataObject
) -> None:
    theirs, ours = pair
    reason = can_pull(theirs, ours)
    if reason is not None:
        assert reason.split(" is ")[0] in KvLayout.__struct_fields__
        return
    most = BLOCKS * min(theirs.block_size, ours.block_size)
    tokens = data.draw(st.integers(1, min(most, 40)))
    source, sink = Memory(theirs, BLOCKS), Memory(ours, BLOCKS)
    order = st.permutations(range(BLOCKS))
    blocks = data.draw(order)[: blocks_for(theirs, tokens)]
    into = data.draw(order)[: blocks_for(ours, tokens)]
    skip = data.draw(st.integers(0, tokens // ours.block_size))
    source.write(blocks, range(tokens))
    arrived = pull(source, sink, blocks, into, skip)
    assert arrived.error is None
    kept = skip * ours.block_size
    assert sink.wrong(into, range(kept, tokens)) == []
    for memory, size in zip(sink.ranks, ours.block_bytes, strict=True):
        for block in set(range(BLOCKS)) - set(into[skip:]):
            assert not any(memory[block * size : (block + 1) * size])


@given(theirs=layouts, ours=layouts)
def test_what_fits_one_way_fits_the_other(theirs: KvLayout, ours: KvLayout) -> None:
    assert (can_pull(theirs, ours) is None) == (can_pull(ours, theirs) is None)
    assert can_pull(ours, ours) is None


@given(pair=pairs)
def test_pieces_are_as_few_as_both_sides_allow(pair: tuple[KvLayout, KvLayout]) -> None:
    """And they make up all that we have, once."""
    theirs, ours = pair
    assume(can_pull(theirs, ours) is None)
    way = map_blocks(theirs, ours)
    assert way.slot_bytes == sum(ours.block_bytes) // way.our_slots
    for one, two in zip(way.pieces, way.pieces[1:], strict=False):
        assert not one.precedes(two)


CHANGES = {
    "dtype": "float16",
    "layers": 3,
    "parts": 1,
    "kv_heads": 4,
    "head_dim": 5,
    "version": VERSION + 1,
    "global_layers": 2,
    "global_kv_heads": 3,
    "global_head_dim": 8,
    "block_size": 24,
    "tensor_parallel_size": 3,
    "block_bytes": (7,),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_mismatch_names_the_field_and_the_two_values(name: str) -> None:
    ours = layout(16)
    theirs = msgspec.structs.replace(ours, **{name: CHANGES[name]})
    here = getattr(ours, name)
    assert can_pull(theirs, ours) == f"{name} is {CHANGES[name]} there and {here} here"


def test_rows_of_two_widths_are_read_into_equal_blocks_only() -> None:
    """Slots of a block would be of two sizes."""
    theirs, ours = (beside(layout(size), (1, 2, 6)) for size in (8, 16))
    assert can_pull(theirs, ours) == "block_size is 8 there and 16 here"
    assert can_pull(theirs, beside(layout(8, ranks=2), (1, 2, 6))) is None


def test_ranks_have_to_share_out_the_heads_of_both_kinds() -> None:
    theirs, ours = (beside(layout(8, heads=4, ranks=one), (1, 6, 3)) for one in (1, 4))
    assert can_pull(theirs, ours) == "tensor_parallel_size is 1 there and 4 here"


def test_ranks_that_do_not_share_out_the_heads_evenly_fit_nobody_else() -> None:
    uneven = msgspec.structs.replace(layout(16, heads=6), tensor_parallel_size=4)
    assert can_pull(uneven, layout(16, heads=6)) == "tensor_parallel_size is 4 there and 1 here"


def test_alike_sides_read_whole_blocks() -> None:
    way = map_blocks(layout(16), layout(16))
    assert (way.pieces, way.our_slots) == ((), 1)


def test_latents_of_two_block_sizes_are_one_piece_for_each_layer() -> None:
    """Three layers of one head."""
    shape = {"heads": 1, "parts": 1, "layers": 3}
    assert len(map_blocks(layout(16, **shape), layout(32, **shape)).pieces) == 3


def test_a_slice_of_heads_is_one_piece_for_each_layer_and_part() -> None:
    way = map_blocks(layout(16, heads=8), layout(16, heads=8, ranks=4))
    assert [piece.our_rank for piece in way.pieces] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert {piece.size for piece in way.pieces} == {2 * 16 * 3}


def test_copies_of_a_head_are_read_in_turns() -> None:
    """Four ranks have two heads: each of ours reads the copy of another."""
    way = map_blocks(layout(16, ranks=4), layout(16, ranks=8))
    assert sorted({piece.their_rank for piece in way.pieces}) == [0, 1, 2, 3]


def test_not_more_pieces_are_read_at_once_than_can_be_named_in_time() -> None:
    shape = {"heads": 64, "layers": 64, "parts": 2}
    way = map_blocks(layout(4, **shape), layout(8, **shape))
    assert len(way.pieces) == 8192
    runs = way.runs(range(10), range(5), 0)
    assert sum(run.count for run in runs) == 2


@pytest.mark.parametrize(("ranks", "fits"), [(MOST_RANKS, True), (2 * MOST_RANKS, False)])
def test_a_peer_of_very_many_ranks_fits_only_its_like(ranks: int, *, fits: bool) -> None:
    """The transfer thread would list the pieces of each, for as long as leases last."""
    ours = layout(16, heads=1)
    row = sum(ours.block_bytes)
    theirs = msgspec.structs.replace(
        ours, tensor_parallel_size=ranks, block_bytes=(row,) * ranks
    )
    assert can_pull(theirs, theirs) is None
    for one, two in ((theirs, ours), (ours, theirs)):
        reason = can_pull(one, two)
        assert (reason is None) is fits
        assert fits or f"more than {MOST_RANKS} ranks" in str(reason)


def test_a_claim_of_endlessly_many_ranks_is_read_and_refused_at_once() -> None:
    """A message that cannot be read would be dropped, and its sender would never learn why."""
    claim = msgspec.structs.replace(layout(16), tensor_parallel_size=MOST)
    told = decode_from_sink(encode(Hello("same", claim)))
    assert isinstance(told, Hello)
    reason = can_pull(layout(16), told.layout)
    assert reason is not None
    assert reason.startswith("tensor_parallel_size is ")
