"""Every connector puts states beside KV in their place, whatever the two sides are like."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from math import lcm

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
from tests.fakes.sharded_states import Net, write_state, wrong_states
from tests.fakes.spoiling import SpoilingMover

BLOCKS, MOST_TURNS = 32, 2000
NET, SIX = Net(), Net(key_heads=6, value_heads=12, aligned=4)


def with_state(block_size: int, ranks: int = 1, heads: int = 4, net: Net = NET) -> KvLayout:
    return net.beside(layout(block_size, heads=heads, ranks=ranks))


CASES = {
    "TP1 to TP2": (with_state(16), with_state(16, 2)),
    "TP2 to TP1": (with_state(16, 2), with_state(16)),
    "TP4 to TP2": (with_state(16, 4), with_state(16, 2)),
    "more ranks than KV heads": (with_state(16, 2, heads=2), with_state(8, 4, heads=2)),
    "fewer ranks again": (with_state(8, 4, heads=2), with_state(16, heads=2)),
    "blocks twice as large": (with_state(8), with_state(16)),
    "blocks half as large": (with_state(32), with_state(8)),
    "larger blocks on more ranks": (with_state(8), with_state(32, 4)),
    "blocks that do not divide": (with_state(24), with_state(16)),
    "blocks that do not divide on more ranks": (with_state(24, 2), with_state(16, 4)),
    "blocks that do not divide on fewer ranks": (with_state(12, 2), with_state(20)),
    "neither has all of a rank": (
        with_state(16, 2, heads=6, net=SIX),
        with_state(16, 3, heads=6, net=SIX),
    ),
    "layers are farther apart": (
        with_state(16),
        Net(aligned=512).beside(layout(16, heads=4)),
    ),
}
UNCHECKED = "neither has all of a rank"


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Maker:
    maker: Maker = request.param
    return maker


def blocks_of(kv: KvLayout, tokens: int, step: int) -> tuple[list[int], int]:
    """A sequence's blocks, none twice, and how many of them have KV."""
    count = -(-tokens // kv.block_size)
    return [(step * index + tokens) % BLOCKS for index in range(count + kv.state_blocks)], count


def hand_over(pair: Pair, blocks: list[int], into: list[int], *, at_once: bool) -> Arrived:
    """Block by block, with some rounds in between, or all of it before the sink asks."""
    pair.asked += 1
    ticket, arrived = pair.source.offer(f"r{pair.asked}"), list[Arrived]()
    if not at_once:
        pair.sink.pull(ticket, into)
    for block in blocks:
        pair.source.extend(ticket.ticket_id, [block])
        arrived += [] if at_once else pair.step()
    pair.source.seal(ticket.ticket_id, Sealed(1, 7))
    if at_once:
        pair.sink.pull(ticket, into)
    for _ in range(MOST_TURNS):
        if arrived:
            break
        arrived += pair.step()
    (ended,) = arrived
    return ended


def check(pair: Pair, source: Memory, sink: Memory, tokens: int, *, at_once: bool) -> int:
    """One prompt of so many tokens; how many bytes were read."""
    blocks, kv = blocks_of(source.layout, tokens, 7)
    into, our_kv = blocks_of(sink.layout, tokens, 5)
    source.clear()
    source.write(blocks[:kv], range(tokens))
    write_state(source, blocks[kv:])
    sink.clear()
    arrived = hand_over(pair, blocks, into, at_once=at_once)
    assert arrived.error is None
    assert sink.wrong(into[:our_kv], range(tokens)) == []
    assert wrong_states(sink, into[our_kv:]) == []
    return arrived.stats.num_bytes


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_kv_and_state_land_where_they_belong(make: Maker, case: str, *, at_once: bool) -> None:
    theirs, ours = CASES[case]
    assert can_pull(theirs, ours) is None
    source, sink = Memory(theirs, BLOCKS), Memory(ours, BLOCKS)
    kept = ours.least_layer_bytes * ours.state_layers * ours.tensor_parallel_size
    with make(source, sink) as pair:
        for tokens in (49, 32, 17, 1):
            moved = check(pair, source, sink, tokens, at_once=at_once)
            read = min(-(-tokens // kv.block_size) * kv.block_size for kv in (theirs, ours))
            assert moved == read * sum(ours.block_bytes) // ours.block_size + kept


def test_a_peer_that_does_not_describe_its_state_fits_its_like(make: Maker) -> None:
    """Nodes of the release before, and those of this one."""
    ours, (_, other) = with_state(16, 2), CASES["TP2 to TP1"]
    older = replace(layout(16, heads=4, ranks=2), state_blocks=ours.state_blocks)
    for theirs, here in ((older, ours), (ours, older)):
        source, sink = Memory(theirs, BLOCKS), Memory(here, BLOCKS)
        blocks = [*range(3 + ours.state_blocks)]
        for memory in source.ranks:
            memory[:] = bytes(number % 251 for number in range(len(memory)))
        with make(source, sink) as pair:
            assert hand_over(pair, blocks, blocks, at_once=False).error is None
        size = len(blocks) * ours.block_bytes[0]
        assert [one[:size] for one in sink.ranks] == [one[:size] for one in source.ranks]
    with make(Memory(older, BLOCKS), Memory(other, BLOCKS)) as pair:
        arrived = hand_over(pair, [0], [0], at_once=True)
    assert isinstance(arrived.error, LayoutMismatch)
    assert str(arrived.error) == "tensor_parallel_size is 2 there and 1 here"


class Turning(SpoilingMover):
    """A place is one in our first region; it is turned when the state has been read, or when
    KV has.
    """

    in_state = True

    def _turn(self, order: ReadOrder, place: int, bit: int) -> None:
        if self.in_state is (order.cut.our_step_bytes is None):
            self.turns.append((place, bit))
            return
        address = self.regions[0].address + place
        ctypes.memset(address, ctypes.string_at(address, 1)[0] ^ 1 << bit, 1)


@contextmanager
def checked(source: Memory, sink: Memory, level: CheckLevel) -> Iterator[tuple[Pair, Turning]]:
    """Over a link that can be told to turn bits."""
    mover = TcpMover.start(HERE, HERE, source.regions)
    link = Turning(TcpMover.start(HERE, HERE, sink.regions), sink.regions)
    with network([mover, link], source, sink, level) as pair:
        yield pair, link


@pytest.mark.parametrize("level", [CheckLevel.SAMPLED, CheckLevel.FULL])
@pytest.mark.parametrize("case", CASES)
def test_right_states_have_right_checksums(case: str, level: CheckLevel) -> None:
    source, sink = (Memory(one, BLOCKS) for one in CASES[case])
    with checked(source, sink, level) as (pair, _):
        for tokens in (49, 17):
            check(pair, source, sink, tokens, at_once=tokens == 17)


@pytest.mark.parametrize("case", [case for case in CASES if case != UNCHECKED])
def test_a_turned_bit_of_a_state_is_caught(case: str) -> None:
    """Whichever layer it is of; a few places of each."""
    source, sink = (Memory(one, BLOCKS) for one in CASES[case])
    kv, tokens = sink.layout, 17
    blocks, theirs = blocks_of(source.layout, tokens, 7)
    into, ours = blocks_of(kv, tokens, 5)
    source.write(blocks[:theirs], range(tokens))
    write_state(source, blocks[theirs:])
    with checked(source, sink, CheckLevel.FULL) as (pair, link):
        for layer in range(kv.state_layers):
            place, at = divmod(layer, kv.states_per_block)
            start = into[ours + place] * kv.block_bytes[0] + at * kv.state_layer_bytes
            for within in (0, kv.least_layer_bytes // 3, kv.least_layer_bytes - 1):
                link.turns = [(start + within, 3)]
                arrived = hand_over(pair, blocks, into, at_once=True)
                assert isinstance(arrived.error, CorruptKv)
        assert hand_over(pair, blocks, into, at_once=True).error is None


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.startswith("blocks that do not divide")]
)
def test_a_turned_bit_of_kv_is_caught(case: str) -> None:
    """Of a prompt that fills the blocks of both sides."""
    source, sink = (Memory(one, BLOCKS) for one in CASES[case])
    tokens = lcm(*(one.layout.block_size for one in (source, sink)))
    blocks, theirs = blocks_of(source.layout, tokens, 7)
    into, ours = blocks_of(sink.layout, tokens, 5)
    source.write(blocks[:theirs], range(tokens))
    size = sink.layout.block_bytes[0]
    with checked(source, sink, CheckLevel.FULL) as (pair, link):
        link.in_state = False
        for block in into[:ours]:
            for place in range(0, size, 41):
                link.turns = [(block * size + place, place % 8)]
                arrived = hand_over(pair, blocks, into, at_once=True)
                assert isinstance(arrived.error, CorruptKv)
        assert hand_over(pair, blocks, into, at_once=True).error is None


OTHERS = {
    "state_layers": replace(NET.beside(layout(16, heads=4)), state_layers=4),
    "state_key_heads": with_state(16, net=Net(key_heads=8)),
    "state_value_heads": with_state(16, net=Net(value_heads=4)),
    "state_key_width": with_state(16, net=Net(key_width=1)),
    "state_value_width": with_state(16, net=Net(value_width=2)),
    "state_taps": with_state(16, net=Net(taps=1)),
    "state_layer_bytes": replace(with_state(16), state_layer_bytes=4),
    "state_blocks": replace(with_state(16), state_blocks=9),
    "block_size": with_state(67),
    "tensor_parallel_size": with_state(16, 4, net=Net(key_heads=2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_states_that_cannot_be_exchanged_are_refused_by_name(name: str) -> None:
    other = OTHERS[name]
    ours = (
        with_state(16, net=Net(key_heads=2))
        if name == "tensor_parallel_size"
        else (with_state(16))
    )
    for theirs, here in ((other, ours), (ours, other)):
        there, own = getattr(theirs, name), getattr(here, name)
        assert can_pull(theirs, here) == f"{name} is {there} there and {own} here"
