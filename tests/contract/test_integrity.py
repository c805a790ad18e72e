"""No wrong byte is ever taken for KV, over links that turn bits and sources that forget."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import KvRegion
from kv_transfer.api import Arrived, Outcome, Sealed
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import CorruptKv
from kv_transfer.movers.mover import Mover
from kv_transfer.movers.nixl import NixlMover
from kv_transfer.movers.tcp import TcpMover
from tests.contract.rigs import BLOCK, BLOCKS, HERE, Rig, network_rig
from tests.fakes.spoiling import SpoilingMover

OFF, SAMPLED, FULL = CheckLevel.OFF, CheckLevel.SAMPLED, CheckLevel.FULL
THEIRS, OURS = [6, 2, 3, 7, 0], [1, 4, 5, 0, 3]
SIZE = BLOCK * len(THEIRS)


def tcp(_: str, regions: Sequence[KvRegion]) -> Mover:
    return TcpMover.start(HERE, HERE, regions)


@contextmanager
def spoiled(kind: str, *levels: CheckLevel) -> Iterator[tuple[Rig, SpoilingMover]]:
    """A rig, and the mover of its sink."""
    movers = list[SpoilingMover]()

    def start(name: str, regions: Sequence[KvRegion]) -> Mover:
        inner = NixlMover.start(name, regions) if kind == "nixl" else tcp(name, regions)
        movers.append(SpoilingMover(inner, regions))
        return movers[-1]

    source, sink = levels
    with network_rig(start, levels=(source, sink)) as rig:
        for block in range(BLOCKS):
            rig.fill(block, bytes([65 + block]))
        yield rig, movers[-1]


def hand_over(rig: Rig, name: str) -> Arrived:
    ticket = rig.source.offer(name)
    rig.source.extend(ticket.ticket_id, THEIRS[:3])
    rig.source.extend(ticket.ticket_id, THEIRS[3:])
    rig.source.seal(ticket.ticket_id, Sealed(5, 1))
    rig.sink.pull(ticket, into=OURS)
    for _ in range(10 * rig.steps):
        if arrived := rig.once():
            return arrived[0]
    raise AssertionError("nothing arrived")


def is_right(rig: Rig) -> bool:
    return all(
        rig.ours[ours * BLOCK : (ours + 1) * BLOCK] == bytes([65 + theirs]) * BLOCK
        for theirs, ours in zip(THEIRS, OURS, strict=True)
    )


@pytest.mark.parametrize("kind", ["tcp", "nixl"])
def test_every_single_turned_bit_is_caught(kind: str) -> None:
    with spoiled(kind, FULL, FULL) as (rig, link):

        @settings(max_examples=100)
        @given(place=st.integers(0, SIZE - 1), bit=st.integers(0, 7), name=st.uuids())
        def turn(place: int, bit: int, name: object) -> None:
            link.turns = [(place, bit)]
            assert isinstance(hand_over(rig, f"{place}-{bit}-{name}").error, CorruptKv)
            assert not is_right(rig)

        turn()
        assert hand_over(rig, "unhurt").error is None
        assert is_right(rig)


@pytest.mark.parametrize("kind", ["tcp", "nixl"])
def test_without_checksums_a_turned_bit_goes_unseen(kind: str) -> None:
    """So what is caught above is there."""
    with spoiled(kind, OFF, OFF) as (rig, link):
        link.turns = [(37, 3)]
        assert hand_over(rig, "r").error is None
        assert not is_right(rig)


@pytest.mark.parametrize(
    ("source", "sink"), [(FULL, OFF), (OFF, FULL), (SAMPLED, FULL), (FULL, SAMPLED)]
)
def test_the_more_careful_side_decides(source: CheckLevel, sink: CheckLevel) -> None:
    with spoiled("tcp", source, sink) as (rig, link):
        assert hand_over(rig, "unhurt").error is None
        for place in range(SIZE):
            link.turns = [(place, 0)]
            assert isinstance(hand_over(rig, f"r{place}").error, CorruptKv)


def test_samples_find_blocks_that_are_not_the_right_ones() -> None:
    with spoiled("tcp", SAMPLED, SAMPLED) as (rig, link):
        link.turns = [(place, bit) for place in range(BLOCK) for bit in range(8)]
        assert isinstance(hand_over(rig, "r").error, CorruptKv)


def test_a_block_that_is_written_again_while_it_is_on_offer_is_caught() -> None:
    """Somebody else's KV is never taken for ours (aibrix#1772, sglang#22716)."""
    with spoiled("tcp", SAMPLED, SAMPLED) as (rig, _):
        ticket = rig.source.offer("r")
        rig.source.extend(ticket.ticket_id, [5])
        rig.outcomes()
        rig.fill(5, b"x")
        rig.source.seal(ticket.ticket_id, Sealed(1, 1))
        rig.sink.pull(ticket, into=[0])
        (arrived,) = rig.arrive()
        assert isinstance(arrived.error, CorruptKv)
        assert rig.outcomes() == [Outcome.WITHDRAWN]


def test_blocks_of_bad_kv_are_back_at_its_source_at_once() -> None:
    with spoiled("tcp", FULL, FULL) as (rig, link):
        link.turns = [(0, 0)]
        hand_over(rig, "r")
        assert rig.outcomes() == [Outcome.WITHDRAWN]


def test_what_is_skipped_is_not_looked_at() -> None:
    """It is ours; the checksums of the rest are still those of the rest."""
    with spoiled("tcp", FULL, FULL) as (rig, link):
        for name, skip, turns in (("r", 2, []), ("bad", 2, [(0, 0)])):
            ticket = rig.source.offer(name)
            rig.source.extend(ticket.ticket_id, THEIRS)
            rig.source.seal(ticket.ticket_id, Sealed(5, 1))
            link.turns = list(turns)
            rig.sink.pull(ticket, into=OURS, skip=skip)
            (arrived,) = rig.arrive()
            assert isinstance(arrived.error, CorruptKv) == bool(turns)
