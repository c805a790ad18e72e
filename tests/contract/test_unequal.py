"""Whatever two sides' blocks and ranks are like, every connector puts bytes in their place."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from kv_transfer.api import Arrived, Sealed
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import CorruptKv, LayoutMismatch
from kv_transfer.layout import KvLayout, can_pull
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.tcp import TcpMover
from tests.contract.rigs import HERE
from tests.contract.unequal_pairs import MAKERS, Maker, Pair, network
from tests.fakes.sharded import Memory, layout
from tests.fakes.spoiling import SpoilingMover

BLOCKS = 16
MOST_TURNS = 2000


LATENT = {"heads": 1, "parts": 1, "layers": 3, "row_bytes": 12}
CASES = {
    "alike": (layout(4), layout(4)),
    "blocks twice as large": (layout(4), layout(8)),
    "blocks half as large": (layout(8), layout(4)),
    "blocks of one token": (layout(1), layout(8)),
    "latents, larger": (layout(4, **LATENT), layout(8, **LATENT)),
    "latents, smaller": (layout(8, **LATENT), layout(4, **LATENT)),
    "latents on every rank": (layout(4, **LATENT), layout(8, **LATENT, ranks=2)),
    "TP1 to TP4": (layout(4, heads=4), layout(4, heads=4, ranks=4)),
    "TP4 to TP1": (layout(4, heads=4, ranks=4), layout(4, heads=4)),
    "TP2 to TP4": (layout(4, heads=4, ranks=2), layout(4, heads=4, ranks=4)),
    "TP4 to TP2": (layout(4, heads=8, ranks=4), layout(4, heads=8, ranks=2)),
    "TP2 with both": (layout(4, ranks=2), layout(4, ranks=2)),
    "more ranks than heads": (layout(4), layout(4, ranks=4)),
    "copies on both sides": (layout(4, ranks=4), layout(4, ranks=8)),
    "from copies": (layout(4, ranks=4), layout(4)),
    "ranks and blocks": (layout(8, heads=4, ranks=2), layout(4, heads=4, ranks=4)),
}


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Maker:
    maker: Maker = request.param
    return maker


def blocks_for(kv: KvLayout, tokens: int) -> int:
    return -(-tokens // kv.block_size)


def hand_over(pair: Pair, blocks: list[int], into: list[int], skip: int = 0) -> list[Arrived]:
    """Block by block, and some rounds in between."""
    pair.asked += 1
    ticket, arrived = pair.source.offer(f"r{pair.asked}"), list[Arrived]()
    pair.sink.pull(ticket, into, skip)
    for block in blocks:
        pair.source.extend(ticket.ticket_id, [block])
        arrived += pair.step()
    pair.source.seal(ticket.ticket_id, Sealed(1, 7))
    for _ in range(MOST_TURNS):
        if arrived:
            break
        arrived += pair.step()
    return arrived


def at_once(pair: Pair, blocks: list[int], into: list[int], skip: int = 0) -> Arrived:
    """All in one read."""
    pair.asked += 1
    ticket = pair.source.offer(f"r{pair.asked}")
    pair.source.extend(ticket.ticket_id, blocks)
    pair.source.seal(ticket.ticket_id, Sealed(1, 7))
    pair.sink.pull(ticket, into, skip)
    arrived = list[Arrived]()
    while not arrived:
        arrived += pair.step()
    return arrived[0]


@pytest.mark.parametrize("case", CASES)
def test_bytes_land_where_they_belong(make: Maker, case: str) -> None:
    """Pain 31: of prompts of some lengths, one after another."""
    theirs, ours = CASES[case]
    source, sink = Memory(theirs, 2 * BLOCKS), Memory(ours, 2 * BLOCKS)
    per_token = sum(ours.block_bytes) // ours.block_size
    slot = min(theirs.block_size, ours.block_size)
    with make(source, sink) as pair:
        for tokens in (31, 16, 9, 1):
            blocks = [(7 * index + tokens) % 32 for index in range(blocks_for(theirs, tokens))]
            into = [(5 * index + tokens) % 32 for index in range(blocks_for(ours, tokens))]
            source.write(blocks, range(tokens))
            sink.clear()
            (arrived,) = hand_over(pair, blocks, into)
            assert arrived.error is None
            assert sink.wrong(into, range(tokens)) == []
            assert arrived.stats.num_bytes == -(-tokens // slot) * slot * per_token


@pytest.mark.parametrize("case", ["blocks twice as large", "blocks half as large"])
def test_a_prefix_is_skipped_in_blocks_of_the_sink(make: Maker, case: str) -> None:
    theirs, ours = CASES[case]
    source, sink = Memory(theirs, BLOCKS), Memory(ours, BLOCKS)
    blocks = list(range(blocks_for(theirs, 27)))
    into = list(reversed(range(blocks_for(ours, 27))))
    source.write(blocks, range(27))
    with make(source, sink) as pair:
        (arrived,) = hand_over(pair, blocks, into, skip=1)
    assert arrived.error is None
    assert sink.wrong(into, range(ours.block_size, 27)) == []
    size = sum(ours.block_bytes)
    assert not any(sink.ranks[0][into[0] * size : (into[0] + 1) * size])


def test_a_small_final_block_moves_before_the_large_one_is_full(make: Maker) -> None:
    source, sink = Memory(layout(4), BLOCKS), Memory(layout(8), BLOCKS)
    source.write([5, 6], range(8))
    with make(source, sink) as pair:
        ticket = pair.source.offer("r")
        pair.sink.pull(ticket, [2])
        pair.source.extend(ticket.ticket_id, [5])
        for _ in range(MOST_TURNS):
            assert pair.step() == []
            if not sink.wrong([2], range(4)):
                break
        assert sink.wrong([2], range(4)) == []
        assert len(sink.wrong([2], range(8))) == 4 * 8  # layers, parts, heads


@pytest.mark.parametrize(("offered", "reserved"), [(3, 1), (1, 2), (4, 1), (2, 2)])
def test_counts_that_cannot_be_of_one_prompt_are_a_mismatch(
    make: Maker,
    offered: int,
    reserved: int,
) -> None:
    source, sink = Memory(layout(4), BLOCKS), Memory(layout(8), BLOCKS)
    with make(source, sink) as pair:
        (arrived,) = hand_over(pair, list(range(offered)), list(range(reserved)))
    assert isinstance(arrived.error, LayoutMismatch)


REFUSED = {
    "block_size": layout(12),
    "dtype": KvLayout("float16", 4, 2, (96,), 1, 2, 2, 3),
    "head_dim": layout(8, row_bytes=4),
    "layers": layout(8, layers=3),
    "parts": layout(8, parts=1),
    "kv_heads": layout(8, heads=4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_layout_is_refused_by_name(make: Maker, name: str) -> None:
    theirs, ours = layout(8), REFUSED[name]
    with make(Memory(theirs, BLOCKS), Memory(ours, BLOCKS)) as pair:
        (arrived,) = hand_over(pair, [0], [0])
    there, here = getattr(theirs, name), getattr(ours, name)
    assert isinstance(arrived.error, LayoutMismatch)
    assert str(arrived.error) == f"{name} is {there} there and {here} here"


@pytest.mark.parametrize("name", ["block_size", "tensor_parallel_size", "state_blocks"])
def test_states_that_are_not_described_go_between_equal_layouts_only(name: str) -> None:
    """Otherwise either of these could be another."""
    other = {
        "block_size": layout(4, heads=4),
        "tensor_parallel_size": layout(8, heads=4, ranks=2),
        "state_blocks": layout(8, heads=4),
    }[name]
    theirs, ours = layout(8, heads=4), other
    assert can_pull(theirs, ours) is None
    theirs = replace(theirs, state_blocks=2)
    ours = replace(ours, state_blocks=1 if name == "state_blocks" else 2)
    assert can_pull(theirs, theirs) is None
    there, here = getattr(theirs, name), getattr(ours, name)
    assert can_pull(theirs, ours) == f"{name} is {there} there and {here} here"


class Turning(SpoilingMover):
    """A place is one in our first region."""

    def _turn(self, order: ReadOrder, place: int, bit: int) -> None:
        address = self.regions[0].address + place
        ctypes.memset(address, ctypes.string_at(address, 1)[0] ^ 1 << bit, 1)


@contextmanager
def checked(theirs: Memory, ours: Memory, level: CheckLevel) -> Iterator[tuple[Pair, Turning]]:
    """Over a link that can be told to turn bits."""
    mover = TcpMover.start(HERE, HERE, theirs.regions)
    link = Turning(TcpMover.start(HERE, HERE, ours.regions), ours.regions)
    with network([mover, link], theirs, ours, level) as pair:
        yield pair, link


CHECKED = [
    "blocks twice as large",
    "blocks half as large",
    "TP4 to TP2",
    "TP1 to TP4",
    "ranks and blocks",
    "latents on every rank",
    "more ranks than heads",
    "copies on both sides",
]


@pytest.mark.parametrize("level", [CheckLevel.SAMPLED, CheckLevel.FULL])
@pytest.mark.parametrize("case", CASES)
def test_right_bytes_have_right_checksums(case: str, level: CheckLevel) -> None:
    theirs, ours = (Memory(one, 2 * BLOCKS) for one in CASES[case])
    with checked(theirs, ours, level) as (pair, _):
        for skip, tokens in ((0, 31), (1, 29), (1, 9)):
            blocks = [(7 * i + tokens) % 32 for i in range(blocks_for(theirs.layout, tokens))]
            into = [(5 * i + tokens) % 32 for i in range(blocks_for(ours.layout, tokens))]
            theirs.write(blocks, range(tokens))
            (arrived,) = hand_over(pair, blocks, into, skip)
            assert arrived.error is None


@pytest.mark.parametrize("ours", [layout(4), layout(2, heads=2, ranks=2)])
@pytest.mark.parametrize(("tokens", "skip"), [(9, 0), (12, 1), (5, 0), (8, 1), (27, 3)])
def test_a_turned_bit_is_caught_where_only_a_part_of_a_block_was_read(
    ours: KvLayout, tokens: int, skip: int
) -> None:
    """Behind a prefix that is here, and at a prompt's end."""
    theirs = Memory(layout(8), BLOCKS)
    sink = Memory(ours, 2 * BLOCKS)
    blocks = [5, 3, 9, 4][: blocks_for(theirs.layout, tokens)]
    into = list(range(blocks_for(ours, tokens)))
    theirs.write(blocks, range(tokens))
    with checked(theirs, sink, CheckLevel.FULL) as (pair, link):
        for block in into[skip:]:
            link.turns = [(block * ours.block_bytes[0] + 7, 3)]
            assert isinstance(at_once(pair, blocks, into, skip).error, CorruptKv)
        assert at_once(pair, blocks, into, skip).error is None


@pytest.mark.parametrize("case", CHECKED)
def test_a_turned_bit_is_caught_in_every_piece(case: str) -> None:
    """Of prompts that fill the blocks of both sides, all in one read."""
    theirs, ours = (Memory(one, BLOCKS) for one in CASES[case])
    blocks = [5, 3, 9, 4][: blocks_for(theirs.layout, 16)]
    into = [2, 0, 1, 6][: blocks_for(ours.layout, 16)]
    theirs.write(blocks, range(16))
    size = ours.layout.block_bytes[0]
    with checked(theirs, ours, CheckLevel.FULL) as (pair, link):
        for place in range(0, size, 5):
            link.turns = [(into[-1] * size + place, place % 8)]
            assert isinstance(at_once(pair, blocks, into).error, CorruptKv)
