"""The movers of a node's ranks as one: what each of them reads is a part of a read."""

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from kv_transfer.blocks.mapping import BlockMapping, MappedPiece
from kv_transfer.blocks.runs import pair_runs
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import PeerUnreachable
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.ranks import RanksMover
from kv_transfer.regions import RemoteRegion
from kv_transfer.wire import Welcome
from tests.unit.test_remote_mover import AT, CUT, THEIRS, Reader, welcome


def test_a_read_from_two_ranks_is_over_when_both_parts_are() -> None:
    """Until then something may still be written to its blocks; the first error is told."""
    movers = Reader(), Reader()
    ranks = RanksMover(movers)
    ranks.connect(AT, welcome(2, 2))
    ours = [MappedPiece(0, 0, 0, 0, 32), MappedPiece(1, 1, 0, 0, 32)]
    ranks.read(
        ReadOrder(5, AT, pair_runs([1], [2]), (), BlockMapping(1, 1, 32, 64, tuple(ours)))
    )
    parts = [one for mover in movers for one in mover.orders]
    assert [part.address for part in parts] == [AT, ("source rank 1", 1)]
    assert all(piece.our_rank == piece.their_rank == 0 for p in parts for piece in p.cut.pieces)
    movers[1].ends = [(parts[1].read_id, PeerUnreachable("cut"))]
    movers[0].pending = True
    assert not ranks.poll()
    assert ranks.pending
    movers[0].ends = [(parts[0].read_id, None)]
    ((read_id, error),) = ranks.poll()
    assert read_id == 5
    assert isinstance(error, PeerUnreachable)


def test_who_was_never_met_is_not_read_from() -> None:
    ranks = RanksMover((Reader(), Reader()))
    ranks.read(ReadOrder(5, AT, pair_runs([1], [2]), (), CUT))
    assert ranks.pending
    ((read_id, error),) = ranks.poll()
    assert (read_id, type(error)) == (5, PeerUnreachable)
    assert not ranks.pending
    assert not ranks.poll()


def test_who_has_left_is_not_read_from() -> None:
    movers = Reader(), Reader()
    ranks = RanksMover(movers)
    ranks.connect(AT, welcome(2, 2))
    ranks.disconnect(AT)
    ranks.read(ReadOrder(5, AT, pair_runs([1], [2]), (), CUT))
    assert [mover.orders for mover in movers] == [[], []]
    ((_, error),) = ranks.poll()
    assert isinstance(error, PeerUnreachable)


def test_who_comes_back_with_fewer_ranks_is_parted_from_as_it_was() -> None:
    mover = Reader()
    ranks = RanksMover((mover,))
    ranks.connect(AT, welcome(2, 2))
    ranks.connect(AT, welcome(1, 1))
    assert mover.parted == [AT, ("source rank 1", 1)]


def test_a_source_is_asked_for_help_whichever_of_its_ranks_can_give_it() -> None:
    movers = Reader(), Reader()
    ranks = RanksMover(movers)
    ranks.connect(AT, welcome(2, 2))
    movers[1].stalled = (("source rank 1", 1),)
    assert ranks.stalled_sources() == {AT}
    movers[0].stalled = (("another", 1),)
    assert not ranks.stalled_sources()


def test_a_peer_without_memory_is_refused() -> None:
    with pytest.raises(PeerUnreachable, match="1 cards for 0 ranks"):
        RanksMover((Reader(),)).connect(AT, welcome(1, 0))


@pytest.mark.parametrize("cards", [1, 2])
def test_a_peer_with_too_few_cards_is_refused(cards: int) -> None:
    with pytest.raises(PeerUnreachable, match=f"{cards} cards for 3 ranks"):
        RanksMover((Reader(),)).connect(AT, welcome(cards, 3))


def test_parting_is_from_every_rank() -> None:
    movers = Reader(), Reader()
    ranks = RanksMover(movers)
    ranks.connect(AT, welcome(2, 2))
    ranks.disconnect(AT)
    assert [mover.parted for mover in movers] == [[AT, ("source rank 1", 1)]] * 2


def test_the_only_rank_reads_under_the_number_that_it_is_told() -> None:
    mover = Reader()
    ranks = RanksMover((mover,))
    ranks.connect(AT, welcome(1, 1))
    order = ReadOrder(5, AT, pair_runs([1], [2]))
    ranks.read(order)
    assert mover.orders == [order]
    mover.ends = [(5, None)]
    assert ranks.poll() == [(5, None)]


@dataclass
class Meeting(Reader):
    """Remembers what it was told of each peer."""

    told: dict[Address, Welcome] = field(default_factory=dict)

    def connect(self, address: Address, welcome: Welcome) -> None:
        self.told[address] = welcome


def test_to_each_mover_every_rank_is_a_peer_with_its_own_memory_and_card() -> None:
    movers = Meeting(), Meeting()
    said = replace(
        welcome(2, 2), regions=(THEIRS, RemoteRegion(999, 64, 8, "cpu")), cards=(b"0", b"1")
    )
    RanksMover(movers).connect(AT, said)
    assert movers[0].told == movers[1].told
    seen = [(one.engine_id, one.regions, one.cards) for one in movers[0].told.values()]
    assert seen == [
        ("source", said.regions[:1], (b"0",)),
        ("source/1", said.regions[1:], (b"1",)),
    ]


def test_one_rank_reads_from_two_in_parts() -> None:
    mover = Reader()
    ranks = RanksMover((mover,))
    ranks.connect(AT, welcome(2, 2))
    ranks.read(ReadOrder(5, AT, pair_runs([1], [2]), ((CheckLevel.FULL, 1),), CUT))
    assert [part.address for part in mover.orders] == [AT, ("source rank 1", 1)]
    assert [part.checks for part in mover.orders] == [(), ()]
    mover.ends = [(part.read_id, None) for part in mover.orders]
    assert ranks.poll() == [(5, None)]
    assert not ranks._wholes


def test_a_rank_that_the_peer_has_not_is_not_read_from() -> None:
    movers = Reader(), Reader()
    ranks = RanksMover(movers)
    ranks.connect(AT, welcome(1, 1))
    ranks.read(ReadOrder(5, AT, pair_runs([1], [2]), (), CUT))
    assert [mover.orders for mover in movers] == [[], []]
    ((_, error),) = ranks.poll()
    assert isinstance(error, PeerUnreachable)


def test_a_peer_without_any_card_is_refused() -> None:
    with pytest.raises(PeerUnreachable, match="0 cards for 0 ranks"):
        RanksMover((Reader(),)).connect(AT, welcome(0, 0))


class Closing(Reader):
    closed: bool = False

    def close(self) -> None:
        self.closed = True


def test_at_the_end_every_rank_lets_go() -> None:
    movers = Closing(), Closing()
    RanksMover(movers).close()
    assert [mover.closed for mover in movers] == [True, True]
