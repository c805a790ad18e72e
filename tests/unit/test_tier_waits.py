"""Who waits for copies between tiers, who for the disk, and from when on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.request import RequestId
from engine.tiers.book import TierBook
from engine.tiers.disk_book import DiskBook
from engine.tiers.host_book import HostBook
from engine.tiers.host_memory import CopyEvent, HostMemory
from engine.tiers.moves import Copy, DiskJob
from engine.tiers.tiers import FETCH_S, Tiers

ONE, TWO, NEW = b"1", b"2", b"3"
FIRST = RequestId("first")
SLOTS = 8


@dataclass(frozen=True)
class Copies(CopyEvent):
    """Notes who waits for it."""

    waits: list[str] = field(default_factory=list)

    def wait(self) -> None:
        self.waits.append("waited")


class OwnStream(HostMemory):
    """As on a GPU: copies may last longer than the call."""

    last = Copies()

    def carry_out(self, copies: Sequence[Copy]) -> CopyEvent:
        super().carry_out(copies)
        self.last = Copies()
        return self.last


class Queue:
    """A disk that does nothing before `over` has its jobs."""

    broken = False

    def __init__(self) -> None:
        self.told = list[tuple[DiskJob, CopyEvent]]()
        self.over = list[DiskJob]()

    def submit(self, jobs: Sequence[DiskJob], after: CopyEvent) -> None:
        self.told += [(job, after) for job in jobs]

    def finished(self) -> Sequence[tuple[DiskJob, bool]]:
        over, self.over = self.over, []
        return [(job, True) for job in over]

    def close(self) -> None:
        """Nothing to do."""


def tiers_at(now: list[float]) -> tuple[Tiers, OwnStream, Queue]:
    """Two keys are on disk."""
    host, disk = OwnStream(torch.zeros((2, 1), dtype=torch.uint8), SLOTS), Queue()
    book = TierBook(HostBook(SLOTS), 1)
    book.add_disk(DiskBook(4, [(ONE, 0), (TWO, 1)]))
    return Tiers(book, host, disk, lambda: now[0]), host, disk


def test_whoever_lets_others_write_waits_for_copies_and_nobody_else_does() -> None:
    """Also for those that an earlier call began."""
    tiers, host, _ = tiers_at([0.0])
    tiers.book.store(NEW, 0)
    tiers.carry_out()
    assert host.last.waits == []
    tiers.carry_out(wait=True)
    assert host.last.waits == ["waited"]


def test_a_write_to_disk_begins_behind_the_copy_to_its_slot() -> None:
    tiers, host, disk = tiers_at([0.0])
    tiers.book.store(NEW, 0)
    tiers.carry_out()
    assert [(job.key, after is host.last) for job, after in disk.told] == [(NEW, True)]


def test_who_waits_a_second_time_has_the_whole_time_again() -> None:
    now = [0.0]
    tiers, _, disk = tiers_at(now)
    assert tiers.book.fetch(FIRST, [ONE])
    tiers.carry_out()
    disk.over = [job for job, _ in disk.told]
    tiers.collect_finished_jobs()
    tiers.book.release(FIRST)
    tiers.carry_out()
    now[0] = FETCH_S * 0.9
    assert tiers.book.fetch(FIRST, [TWO])
    tiers.carry_out()
    for later, waiting in ((1.8, [FIRST]), (1.95, [])):
        now[0] = FETCH_S * later
        tiers.collect_finished_jobs()
        assert tiers.book.waiting == waiting


def test_who_left_has_no_time_that_could_be_over() -> None:
    now = [0.0]
    tiers, _, disk = tiers_at(now)
    assert tiers.book.fetch(FIRST, [ONE])
    tiers.carry_out()
    tiers.book.release(FIRST)
    now[0] = 2 * FETCH_S
    tiers.collect_finished_jobs()
    assert tiers.book.take_ended_fetches() == []
    disk.over = [job for job, _ in disk.told]
    tiers.collect_finished_jobs()
    assert tiers.book.fetch(FIRST, [TWO]), "nothing is overdue"
