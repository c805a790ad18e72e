"""How many blocks fit on both sides, and how many slots are read at a time."""

from kv_transfer.blocks.mapping import MOST_PIECES, WHOLE_BLOCKS, BlockMapping, MappedPiece
from kv_transfer.blocks.rank_split import split_by_rank

PIECE = MappedPiece(0, 0, 0, 0, 4)
HALVES = BlockMapping(2, 1, 4, 4, (PIECE,))
"""Their blocks are twice as large as ours."""


def test_a_prompt_need_not_fill_the_last_block_but_none_may_be_without_room() -> None:
    assert HALVES.agree(1, 1, complete=True)
    assert HALVES.agree(2, 3, complete=True)
    assert not HALVES.agree(2, 2, complete=True)
    assert not HALVES.agree(2, 2, complete=False)


def test_all_that_was_reserved_is_filled_once_the_offer_is_complete() -> None:
    assert HALVES.agree(1, 2, complete=True)
    assert not HALVES.agree(1, 3, complete=True)
    assert HALVES.agree(1, 3, complete=False)


def test_slots_are_read_in_whole_blocks_of_theirs_and_not_too_many() -> None:
    assert WHOLE_BLOCKS.most_slots is None
    assert BlockMapping(4, 1, 4, 4, (PIECE,) * (MOST_PIECES // 10)).most_slots == 8
    assert BlockMapping(4, 1, 4, 4, (PIECE,) * (MOST_PIECES + 1)).most_slots == 4


def test_a_read_that_begins_within_a_block_ends_with_it() -> None:
    large = BlockMapping(4, 1, 4, 4, (PIECE,) * (MOST_PIECES + 1))
    theirs, ours = [3, 5, 9], list(range(12))
    read = [large.runs(theirs, ours, start).total for start in (2, 4, 8, 12, 13)]
    assert read == [2, 4, 4, 0, 0]
    assert WHOLE_BLOCKS.runs(theirs, ours, 2).total == 1
    assert WHOLE_BLOCKS.runs(theirs, ours, 4).total == 0


def test_reads_to_more_ranks_are_compared_although_no_rank_has_all_bytes() -> None:
    assert BlockMapping(covers=False, spreads=True).is_compared
    assert not BlockMapping(covers=False).is_compared


def test_each_pair_of_ranks_has_its_own_pieces_and_their_bytes() -> None:
    pieces = PIECE, MappedPiece(1, 0, 0, 4, 8), MappedPiece(1, 0, 8, 12, 8)
    split = split_by_rank(BlockMapping(1, 1, 32, 20, pieces), 1)
    assert {pair: (len(cut.pieces), cut.slot_bytes) for pair, cut in split.items()} == {
        (0, 0): (1, 4),
        (0, 1): (2, 16),
    }
