"""Ranks that see only their own memory come to the checksums that one process makes of all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe

import pytest

from kv_transfer.blocks.cutting import WHOLE, Cut, cut
from kv_transfer.checking import Level
from kv_transfer.integrity.checksums import BlockSums
from kv_transfer.integrity.rank_sums import RankSums
from kv_transfer.layout import KvLayout
from kv_transfer.movers.remote import MoverServer, RankStuck, RemoteMover
from tests.fakes.mover import FakeMover
from tests.fakes.sharded import Memory, layout

BLOCKS, LEVELS = 6, [Level.SAMPLED, Level.FULL]
LARGE = {"heads": 4, "row_bytes": 320}
PAIRS = {
    "alike": (layout(4, ranks=2, **LARGE), layout(4, ranks=2, **LARGE)),
    "to fewer": (layout(4, ranks=4, **LARGE), layout(4, ranks=2, **LARGE)),
    "to one": (layout(4, ranks=2, **LARGE), layout(4, **LARGE)),
    "larger blocks": (layout(4, ranks=2, **LARGE), layout(8, ranks=2, **LARGE)),
    "smaller blocks": (layout(8, ranks=4, **LARGE), layout(4, ranks=2, **LARGE)),
}
APART = {
    "to more": (layout(4, **LARGE), layout(4, ranks=2, **LARGE)),
    "two to four": (layout(4, ranks=2, **LARGE), layout(4, ranks=4, **LARGE)),
}


@dataclass(frozen=True)
class Rank:
    """Another process, which answers at once."""

    remote: RemoteMover
    server: MoverServer

    def ask_sums(self, cut: Cut | None, slots: Sequence[Sequence[int]], level: Level) -> None:
        self.remote.ask_sums(cut, slots, level)
        self.server.turn()

    def hear_sums(self) -> list[int]:
        return self.remote.hear_sums()


@contextmanager
def apart(memory: Memory) -> Iterator[RankSums]:
    """Each region is its rank's."""
    others = list[Rank]()
    for region in memory.regions[1:]:
        here, there = Pipe()
        server = MoverServer(there, FakeMover(), region, BlockSums([region]))
        server.introduce()
        others.append(Rank(RemoteMover.over(here), server))
    yield RankSums(BlockSums(memory.regions[:1]), others)
    for other in others:
        other.remote.close()
        other.server.line.close()


def filled(kv: KvLayout) -> tuple[Memory, list[int], range]:
    """Its blocks, in no order, hold as many tokens as have room in the smaller ones."""
    memory, tokens = Memory(kv, BLOCKS), range(16)
    blocks = [5, 2, 0, 4][: len(tokens) // kv.block_size]
    memory.write(blocks, tokens)
    return memory, blocks, tokens


def slots_of(into: Sequence[int], way: Cut, blocks: int) -> list[list[int]]:
    """Where each of their blocks went."""
    every = [block * way.our_slots + one for block in into for one in range(way.our_slots)]
    each = way.their_slots
    return [every[first * each : (first + 1) * each] for first in range(blocks)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pair", PAIRS)
def test_what_came_has_the_sums_of_its_source(pair: str, level: Level) -> None:
    """Whoever looks: one process that sees all, or each rank at its own."""
    theirs, ours = PAIRS[pair]
    source, blocks, _ = filled(theirs)
    sink, into, tokens = filled(ours)
    way = cut(theirs, ours)
    whole = BlockSums(source.regions).of(blocks, level)
    with apart(source) as there, apart(sink) as here:
        assert there.of(blocks, level) == whole
        assert here.sees(way)
        for sums in (here, BlockSums(sink.regions)):
            assert sums.sees(way)
            if not way.pieces:
                assert sums.of(into, level) == whole
                continue
            assert sums.of_pieces(way, slots_of(into, way, len(blocks)), level) == whole
    assert len(set(whole)) == len(blocks)
    assert not sink.wrong(into, tokens)


def test_one_byte_on_any_rank_is_seen() -> None:
    memory, blocks, _ = filled(layout(4, ranks=4, **LARGE))
    with apart(memory) as sums:
        right = sums.of(blocks, Level.FULL)
        for rank, bytes_of_it in enumerate(memory.ranks):
            place = blocks[1] * memory.layout.block_bytes[rank] + 17
            bytes_of_it[place] ^= 1
            assert [
                a == b for a, b in zip(sums.of(blocks, Level.FULL), right, strict=True)
            ] == [index != 1 for index in range(len(blocks))]
            bytes_of_it[place] ^= 1


@pytest.mark.parametrize("pair", APART)
def test_whose_heads_are_spread_over_ranks_cannot_be_summed(pair: str) -> None:
    theirs, ours = APART[pair]
    sink, _, _ = filled(ours)
    with apart(sink) as sums:
        assert not sums.sees(cut(theirs, ours))
        assert sums.sees(WHOLE)


def test_news_that_come_before_sums_are_not_lost() -> None:
    memory, blocks, _ = filled(layout(4, ranks=2, **LARGE))
    with apart(memory) as sums:
        (rank,) = sums.others
        assert isinstance(rank, Rank)
        rank.remote.poll()  # asks whether it is there
        rank.server.turn()  # which it says before anything else
        assert len(sums.of(blocks, Level.FULL)) == len(blocks)
        assert not rank.remote._answered
        rank.remote.poll()
        assert rank.remote._answered


def test_a_rank_that_is_gone_is_not_waited_for() -> None:
    memory, _, _ = filled(layout(4, ranks=2, **LARGE))
    with apart(memory) as sums:
        (rank,) = sums.others
        assert isinstance(rank, Rank)
        rank.server.line.close()
        with pytest.raises(RankStuck):
            rank.remote.hear_sums()
