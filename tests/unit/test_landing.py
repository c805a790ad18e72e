"""Bytes that are one stretch at their source land as one, and then go to their places."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from kv_transfer.blocks.images import IMAGES_BYTES
from kv_transfer.blocks.mapping import map_blocks
from kv_transfer.errors import PeerUnreachable
from kv_transfer.factory import device_bytes
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.descriptors import Rows
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.movers.nixl import POSTING_S, NixlMover
from kv_transfer.movers.nixl_build import bindings
from kv_transfer.movers.nixl_staging import StagingPool
from kv_transfer.movers.spans import Spans, both_sides
from kv_transfer.movers.staging import (
    StagedRead,
    StagedTransfer,
    StagingBuffer,
    plan_staged_reads,
)
from kv_transfer.regions import BlockRun, RemoteRegion
from kv_transfer.wire import Welcome
from tests.fakes.sharded import Memory, layout

AT, BLOCKS = ("source", 1), 12
LARGE, SMALL = layout(8), layout(4)


def both(theirs: KvLayout, ours: KvLayout, runs: list[BlockRun]) -> tuple[Spans, Spans]:
    there, here = Memory(theirs, BLOCKS), Memory(ours, BLOCKS)
    order = ReadOrder(1, AT, runs, (), map_blocks(theirs, ours))
    return both_sides(order, there.regions, here.regions)


@pytest.mark.parametrize(
    ("theirs", "ours"), [(LARGE, SMALL), (SMALL, LARGE), (layout(4, ranks=2), layout(4))]
)
@pytest.mark.parametrize("most", [1 << 20, 500, 383, 54])
def test_every_byte_goes_where_it_would_have_gone(
    theirs: KvLayout, ours: KvLayout, most: int
) -> None:
    there, here = both(theirs, ours, [BlockRun(4, 1, 5), BlockRun(0, 9, 3)])
    wanted = {
        source + at: target + at
        for source, target, size in zip(there.address, here.address, there.size, strict=True)
        for at in range(size)
    }
    found = dict[int, int]()
    every = plan_staged_reads(there, here, most)
    assert (len(every) > 1) is bool(there.size.sum() > most)
    for one in every:
        assert one.there.size.sum() == one.sizes.sum() <= most
        whole = zip(one.there.address, one.there.size, strict=True)
        came = np.concatenate([np.arange(at, at + size) for at, size in whole])
        for offset, target, size in zip(one.offsets, one.targets, one.sizes, strict=True):
            found |= zip(
                came[offset : offset + size], range(target, target + size), strict=True
            )
    assert found == wanted
    assert sum(len(one.there.size) for one in every) * 2 <= len(there.size) + len(every)


def test_what_lies_in_pieces_at_its_source_is_read_in_pieces() -> None:
    """Half of each plane's heads: nothing would be saved by way of another place."""
    there, here = both(layout(4), layout(4, ranks=2), [BlockRun(0, 0, 6)])
    ours = here.region == 1
    some, places = (
        Spans(one.region[ours], one.address[ours], one.size[ours]) for one in (there, here)
    )
    assert plan_staged_reads(some, places) == []
    assert plan_staged_reads(there, here) != []


def test_pieces_that_are_large_for_a_slot_go_to_their_places_at_once() -> None:
    """Two of them may be read at a time, and the slot has to hold both."""
    there, here = both(SMALL, LARGE, [BlockRun(0, 0, 8)])
    (size,) = set(there.size.tolist())
    assert plan_staged_reads(there, here, 2 * size) != []
    assert plan_staged_reads(there, here, 2 * size - 1) == []


def test_ranges_land_one_after_another_on_the_device_that_they_are_for() -> None:
    there, here = both(LARGE, SMALL, [BlockRun(8, 1, 2), BlockRun(0, 9, 2)])
    (parcel,) = plan_staged_reads(there, here)
    nobody: Any = None
    landing = StagedTransfer(nobody, 1 << 40, parcel)
    rows = StagingPool(nobody, "cuda:1").rows(landing)
    size = LARGE.block_bytes[0]
    assert rows.tolist() == [[1 << 40, size, 1], [(1 << 40) + size, size, 1]]


@dataclass(eq=False)
class Handle:
    state: str = "PROC"

    def release(self) -> None:
        """It is over."""


@dataclass
class Agent:
    """Says that transfers go as the test wants; moves nothing."""

    begun: list[Handle] = field(default_factory=list)
    registered: list[object] = field(default_factory=list)
    rows: list[tuple[Rows, Rows]] = field(default_factory=list)
    refuses: Callable[[], None] = lambda: None
    reads_nothing: bool = False

    def register_memory(self, rows: list[object], kind: str) -> None:
        assert kind == "DRAM"
        self.refuses()
        self.registered += rows

    def add_remote_agent(self, card: bytes) -> str:
        return card.decode()

    def prep_xfer_dlist(self, name: str, rows: Rows, kind: str) -> None:
        """None is needed."""

    def get_new_notifs(self) -> None:
        """There are none."""

    def get_xfer_descs(self, rows: Rows, kind: str) -> Rows:
        return rows

    def initialize_xfer(self, operation: str, ours: Rows, theirs: Rows, name: str) -> Handle:
        assert ours[:, 1].tolist() == theirs[:, 1].tolist()
        if self.reads_nothing:
            raise bindings.nixlNotFoundError("no such agent")
        self.rows.append((ours, theirs))
        return Handle()

    def transfer(self, handle: Handle) -> None:
        self.begun.append(handle)

    def check_xfer_state(self, handle: Handle) -> str:
        return handle.state


@dataclass
class Rig:
    agent: Agent
    mover: NixlMover
    ours: Memory
    landings: StagingPool

    def read(self) -> None:
        """Four of their blocks, which take several turns."""
        order = ReadOrder(1, AT, [BlockRun(0, 0, 8)], (), map_blocks(LARGE, SMALL))
        self.mover.read(order)

    def end(self, state: str) -> list[ReadEnd]:
        for handle in self.agent.begun:
            handle.state = state
        return list(self.mover.poll())


@pytest.fixture
def rig() -> Rig:
    agent, ours = Agent(), Memory(SMALL, BLOCKS)
    landings = StagingPool(agent, "cpu", slot_bytes=LARGE.block_bytes[0])  # type: ignore[arg-type]
    mover = NixlMover(agent, ours.regions, None, landings=landings, clock=float)  # type: ignore[arg-type]
    theirs = RemoteRegion(1 << 41, LARGE.block_bytes[0], BLOCKS, "cpu")
    mover.connect(AT, Welcome("engine", "same", LARGE, (theirs,), (b"peer",), "here"))
    return Rig(agent, mover, ours, landings)


def test_no_more_is_under_way_than_there_are_slots(rig: Rig) -> None:
    rig.read()
    assert rig.mover.poll() == []
    assert len(rig.agent.begun) == 2
    assert rig.landings.strip is not None
    assert rig.landings.strip.free == 0
    ended = list[ReadEnd]()
    for _ in range(20):
        ended += rig.end("DONE")
    assert ended == [(1, None)]
    assert rig.landings.strip.free == 2
    assert sum(int(ours[:, 1].sum()) for ours, _ in rig.agent.rows) == 4 * LARGE.block_bytes[0]
    rig.read()
    rig.mover.poll()
    assert len(rig.agent.registered) == 1


class SlowStrip(StagingBuffer):
    """As on a device: pieces are in their places when the test says so."""

    done = False

    def empty(self, slot: int, parcel: StagedRead) -> Callable[[], bool]:
        return lambda: self.done


def test_a_read_is_over_when_its_pieces_are_in_their_places(rig: Rig) -> None:
    """Before that the slot is not lent again: the next bytes would go to those places."""
    rig.landings.strip = strip = SlowStrip("cpu", LARGE.block_bytes[0])
    rig.mover.read(ReadOrder(1, AT, [BlockRun(0, 0, 2)], (), map_blocks(LARGE, SMALL)))
    rig.mover.poll()
    for _ in range(3):
        assert rig.end("DONE") == []
    assert strip.free == 0
    strip.done = True
    assert rig.end("DONE") == [(1, None)]
    assert strip.free == 2


def test_nothing_goes_on_of_a_read_that_failed(rig: Rig) -> None:
    """Nor is a slot lent again while a transfer may still write to it."""
    rig.read()
    rig.mover.poll()
    strip = rig.landings.strip
    assert strip is not None
    strip._memory.fill_(1)
    rig.agent.begun[0].state = "ERR"
    assert rig.mover.poll() == []
    assert strip.free == 1
    ((_, error),) = rig.end("DONE")
    assert isinstance(error, PeerUnreachable)
    assert strip.free == 2
    assert not any(map(any, rig.ours.ranks))


def test_a_slot_is_free_again_if_nothing_could_be_begun_with_it(rig: Rig) -> None:
    rig.agent.reads_nothing = True
    rig.read()
    ((_, error),) = rig.mover.poll()
    assert isinstance(error, PeerUnreachable)
    assert rig.landings.strip is not None
    assert rig.landings.strip.free == 2


def test_nobody_waits_for_a_slot_while_there_is_none(rig: Rig) -> None:
    """Leases are kept alive by the same thread."""
    times = count()
    rig.mover.clock = lambda: next(times) * POSTING_S / 100
    rig.read()
    rig.mover.poll()
    assert len(rig.agent.begun) == 2
    assert next(times) < 50


@pytest.mark.parametrize("refusal", [bindings.nixlBackendError, torch.OutOfMemoryError])
def test_without_room_for_a_strip_pieces_are_read_to_their_places(
    rig: Rig, refusal: type[Exception]
) -> None:
    tries = list[str]()

    def refuse() -> None:
        tries.append("one more")
        raise refusal("no room")

    rig.agent.refuses = refuse
    rig.read()
    rig.mover.poll()
    assert rig.end("DONE") == [(1, None)]
    assert rig.landings.strip is None
    (rows,) = rig.agent.rows
    assert len(rows[0]) > 16
    rig.mover.read(ReadOrder(2, AT, [BlockRun(0, 0, 8)], (), map_blocks(LARGE, SMALL)))
    assert len(tries) == 1
    start = rig.ours.regions[0].address
    assert all(start <= at < start + BLOCKS * SMALL.block_bytes[0] for at in rows[0][:, 0])


def test_what_a_connector_may_come_to_take_of_a_device_is_known_before_it_does() -> None:
    assert device_bytes("nixl") >= StagingBuffer("cpu").num_bytes + IMAGES_BYTES
    assert device_bytes("tcp") == 0
