"""Ranks that see only their own memory come to the checksums that one process makes of all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe

import pytest

from kv_transfer.blocks.checksum_mapping import (
    checksum_parts,
    source_checksum_mapping,
    source_checksums,
)
from kv_transfer.blocks.checksums import Checksums
from kv_transfer.blocks.mapping import BlockMapping, MappedPiece, map_blocks
from kv_transfer.blocks.state_mapping import map_states
from kv_transfer.checking import STRIDE_BYTES, CheckLevel, ExpectedChecksum
from kv_transfer.errors import CorruptKv
from kv_transfer.integrity.checked import expected_checksums, first_mismatch, make_checksums
from kv_transfer.integrity.checksums import BlockChecksums
from kv_transfer.integrity.rank_checksums import RankChecksums
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.open_offers import ChecksumOrder
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.remote import MoverServer, RankStuck, RemoteMover
from tests.fakes.mover import FakeMover
from tests.fakes.sharded import Memory, layout
from tests.fakes.sharded_states import Net, write_state

BLOCKS, LEVELS = 6, [CheckLevel.SAMPLED, CheckLevel.FULL]
LARGE, COPIED = {"heads": 4, "row_bytes": 320}, {"heads": 2, "row_bytes": 320}
PAIRS = {
    "alike": (layout(4, ranks=2, **LARGE), layout(4, ranks=2, **LARGE)),
    "to fewer": (layout(4, ranks=4, **LARGE), layout(4, ranks=2, **LARGE)),
    "to one": (layout(4, ranks=2, **LARGE), layout(4, **LARGE)),
    "larger blocks": (layout(4, ranks=2, **LARGE), layout(8, ranks=2, **LARGE)),
    "smaller blocks": (layout(8, ranks=4, **LARGE), layout(4, ranks=2, **LARGE)),
    "to more": (layout(4, **LARGE), layout(4, ranks=2, **LARGE)),
    "two to four": (layout(4, ranks=2, **LARGE), layout(4, ranks=4, **LARGE)),
    "to more with larger blocks": (layout(4, ranks=2, **LARGE), layout(8, ranks=4, **LARGE)),
    "to more with smaller blocks": (layout(8, **LARGE), layout(4, ranks=4, **LARGE)),
    "to copies": (layout(8, ranks=2, **COPIED), layout(4, ranks=4, **COPIED)),
    "copies to more": (layout(4, ranks=4, **COPIED), layout(8, ranks=8, **COPIED)),
}


@dataclass(frozen=True)
class Rank:
    """Another process, which answers at once."""

    remote: RemoteMover
    server: MoverServer

    def request_checksums(
        self, cut: BlockMapping | None, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> None:
        self.remote.request_checksums(cut, slots, level)
        self.server.turn()

    def receive_checksums(self) -> list[int]:
        return self.remote.receive_checksums()


@contextmanager
def apart(memory: Memory) -> Iterator[RankChecksums]:
    """Each region is its rank's."""
    others = list[Rank]()
    for region in memory.regions[1:]:
        here, there = Pipe()
        server = MoverServer(there, FakeMover(), region, BlockChecksums([region]))
        server.introduce()
        others.append(Rank(RemoteMover.over(here), server))
    yield RankChecksums(BlockChecksums(memory.regions[:1]), others)
    for other in others:
        other.remote.close()
        other.server.line.close()


def filled(kv: KvLayout) -> tuple[Memory, list[int], range]:
    """Its blocks, in no order, hold as many tokens as have room in the smaller ones."""
    memory, tokens = Memory(kv, BLOCKS), range(16)
    blocks = [5, 2, 0, 4][: len(tokens) // kv.block_size]
    memory.write(blocks, tokens)
    return memory, blocks, tokens


def told(sums: Checksums, pair: str, blocks: Sequence[int], level: CheckLevel) -> list[int]:
    """What a source says of its blocks."""
    return make_checksums(
        sums, ChecksumOrder("t", level, 0, blocks, source_checksum_mapping(*PAIRS[pair]))
    )


def compared(
    sums: Checksums,
    pair: str,
    runs: tuple[Sequence[int], Sequence[int]],
    told: Sequence[ExpectedChecksum],
) -> CorruptKv | None:
    """What a sink finds wrong, whose blocks are the latter of two."""
    way = map_blocks(*PAIRS[pair])
    order = ReadOrder(1, ("host", 1), way.runs(*runs, 0), told, way)
    return first_mismatch(sums, expected_checksums(order), way)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pair", PAIRS)
def test_what_came_has_the_sums_of_its_source(pair: str, level: CheckLevel) -> None:
    """Whoever looks: one process that sees all, or each rank at its own."""
    theirs, ours = PAIRS[pair]
    source, blocks, _ = filled(theirs)
    sink, into, tokens = filled(ours)
    whole = told(BlockChecksums(source.regions), pair, blocks, level)
    assert len(set(whole)) == len(whole)
    checks = [(level, one) for one in whole]
    with apart(source) as there, apart(sink) as here:
        assert told(there, pair, blocks, level) == whole
        for sums in (here, BlockChecksums(sink.regions)):
            assert compared(sums, pair, (blocks, into), checks) is None
        for rank, memory in enumerate(sink.ranks):
            place = into[-1] * ours.block_bytes[rank] + STRIDE_BYTES
            memory[place] ^= 1
            for sums in (here, BlockChecksums(sink.regions)):
                found = compared(sums, pair, (blocks, into), checks)
                assert isinstance(found, CorruptKv)
            memory[place] ^= 1
    assert not sink.wrong(into, tokens)


def test_one_byte_on_any_rank_is_seen() -> None:
    memory, blocks, _ = filled(layout(4, ranks=4, **LARGE))
    with apart(memory) as sums:
        right = sums.of(blocks, CheckLevel.FULL)
        for rank, bytes_of_it in enumerate(memory.ranks):
            place = blocks[1] * memory.layout.block_bytes[rank] + 17
            bytes_of_it[place] ^= 1
            assert [
                a == b for a, b in zip(sums.of(blocks, CheckLevel.FULL), right, strict=True)
            ] == [index != 1 for index in range(len(blocks))]
            bytes_of_it[place] ^= 1


def test_news_that_come_before_sums_are_not_lost() -> None:
    memory, blocks, _ = filled(layout(4, ranks=2, **LARGE))
    with apart(memory) as sums:
        (rank,) = sums.others
        assert isinstance(rank, Rank)
        rank.remote.poll()  # asks whether it is there
        rank.server.turn()  # which it says before anything else
        assert len(sums.of(blocks, CheckLevel.FULL)) == len(blocks)
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
            rank.remote.receive_checksums()


@pytest.mark.parametrize("ranks", [(2, 3), (3, 2), (4, 6), (6, 4)])
@pytest.mark.parametrize("blocks", [(4, 4), (8, 4), (4, 8)])
def test_ranks_that_share_heads_crosswise_are_not_compared(
    ranks: tuple[int, int], blocks: tuple[int, int]
) -> None:
    """No rank has all that one of the other side's has: its source still sums its own."""
    theirs, ours = (
        layout(size, heads=12, ranks=count, row_bytes=320)
        for size, count in zip(blocks, ranks, strict=True)
    )
    way = map_blocks(theirs, ours)
    assert not way.is_compared
    memory = Memory(theirs, BLOCKS)
    memory.write([5, 2], range(2 * theirs.block_size))
    with apart(memory) as sums:
        said = make_checksums(
            sums,
            ChecksumOrder(
                "t", CheckLevel.FULL, 0, [5, 2], source_checksum_mapping(theirs, ours)
            ),
        )
    assert len(said) == 2 * way.their_slots


def test_a_peer_of_many_ranks_has_each_piece_looked_at_once() -> None:
    """It may claim as many as it likes: the transfer thread would do nothing else meanwhile."""
    visits = list[int]()

    class Pieces(tuple[MappedPiece, ...]):
        def __iter__(self) -> Iterator[MappedPiece]:
            visits.append(len(self))
            return super().__iter__()

    ranks = 16
    one, many = (layout(4, heads=ranks, ranks=n, row_bytes=320) for n in (1, ranks))
    seen = source_checksum_mapping(one, many)
    parts = checksum_parts(replace(seen, pieces=Pieces(seen.pieces)))
    assert len(parts) == ranks
    assert visits == [len(seen.pieces)]


LARGE_NET = Net(key_width=4, value_width=8, aligned=1024)
STATES = {
    "to more": (LARGE_NET.beside(layout(4, **LARGE)), LARGE_NET.beside(PAIRS["to one"][0])),
    "to fewer": (
        LARGE_NET.beside(layout(4, ranks=4, **LARGE)),
        LARGE_NET.beside(layout(4, ranks=2, **LARGE)),
    ),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pair", STATES)
def test_what_came_of_a_state_has_the_sums_of_its_source(pair: str, level: CheckLevel) -> None:
    """Its slots are in blocks that are not where they were."""
    source, sink = (Memory(kv, BLOCKS) for kv in STATES[pair])
    seen, way = source_checksums(*STATES[pair]).state, map_states(*STATES[pair])
    assert seen is not None
    assert way is not None
    theirs, ours = [[5, 2, 0, 4][: one.layout.state_blocks] for one in (source, sink)]
    write_state(source, theirs)
    write_state(sink, ours)
    asked = ChecksumOrder("t", level, 0, theirs, seen)
    whole = make_checksums(BlockChecksums(source.regions), asked)[: LARGE_NET.layers]
    assert len(set(whole)) == LARGE_NET.layers
    runs = way.runs(theirs, ours, 0, LARGE_NET.layers)
    order = ReadOrder(1, ("host", 1), runs, [(level, one) for one in whole], way)
    with apart(source) as there, apart(sink) as here:
        assert make_checksums(there, asked)[: LARGE_NET.layers] == whole
        for sums in (here, BlockChecksums(sink.regions)):
            assert first_mismatch(sums, expected_checksums(order), way) is None
        for memory in sink.ranks:
            memory[ours[0] * sink.layout.block_bytes[0]] ^= 1
            for sums in (here, BlockChecksums(sink.regions)):
                found = first_mismatch(sums, expected_checksums(order), way)
                assert isinstance(found, CorruptKv)
            memory[ours[0] * sink.layout.block_bytes[0]] ^= 1
