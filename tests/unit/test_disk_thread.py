"""The thread under the engine: order, errors, and an engine over it that comes again."""

import logging
import os
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EDQUOT, EIO, ENOSPC
from pathlib import Path
from random import Random

import pytest
import torch

from engine.api import Admitted
from engine.tiers.book import TierBook
from engine.tiers.disk_book import DiskBook
from engine.tiers.disk_thread import DiskThread
from engine.tiers.host_book import HostBook
from engine.tiers.host_memory import DONE, CopyEvent, HostMemory
from engine.tiers.moves import DiskJob, DiskOperation
from engine.tiers.slab import PAGE, Slab
from engine.tiers.tiers import Tiers
from tests.fakes.engine import FakeEngine
from tests.unit.test_scheduling_property import Arrival, engine_for, play

SIZE = 8192
STRIDE = SIZE + PAGE


@dataclass(frozen=True)
class Held(CopyEvent):
    """Copies that end when you say so."""

    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        self.begun.set()
        assert self.over.wait(10)


def host(slots: int = 4) -> HostMemory:
    memory = HostMemory(torch.zeros((1, SIZE), dtype=torch.uint8), slots)
    for n in range(slots):
        memory.slots[n].fill_(n)
    return memory


def job(way: DiskOperation, n: int, slot: int) -> DiskJob:
    return DiskJob(way, n.to_bytes(16, "little"), slot, n)


def slab(path: Path) -> Slab:
    return Slab.open(path, "model", SIZE, 100 * STRIDE)


def results(disk: DiskThread, count: int) -> list[tuple[DiskJob, bool]]:
    """So many, however long it takes."""
    found, deadline = list[tuple[DiskJob, bool]](), time.monotonic() + 10
    while len(found) < count:
        assert time.monotonic() < deadline
        found += disk.finished()
    return found


@contextmanager
def files_may_grow_to(most: int) -> Iterator[None]:
    """As on a full disk: a write beyond it fails, and one across it is cut short."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


def test_who_reads_goes_before_who_writes_and_both_after_the_copies(tmp_path: Path) -> None:
    disk, held = DiskThread(slab(tmp_path), host()), Held()
    disk.submit([job(DiskOperation.WRITE, 0, 0)], held)
    assert held.begun.wait(10)
    disk.submit(
        [
            job(DiskOperation.WRITE, 1, 1),
            job(DiskOperation.WRITE, 2, 2),
            job(DiskOperation.READ, 0, 3),
        ],
        DONE,
    )
    assert disk.finished() == []
    held.over.set()
    done = [(one.operation, one.place, ok) for one, ok in results(disk, 4)]
    assert done == [
        (DiskOperation.WRITE, 0, True),
        (DiskOperation.READ, 0, True),
        (DiskOperation.WRITE, 1, True),
        (DiskOperation.WRITE, 2, True),
    ]
    disk.close()


def test_what_was_read_is_in_the_slot(tmp_path: Path) -> None:
    memory = host()
    disk = DiskThread(slab(tmp_path), memory)
    disk.submit([job(DiskOperation.WRITE, 1, 1)], DONE)
    results(disk, 1)
    disk.submit([job(DiskOperation.READ, 1, 3), job(DiskOperation.READ, 2, 2)], DONE)
    assert [ok for _, ok in results(disk, 2)] == [True, False]
    assert memory.slots[3].unique().tolist() == [1]
    disk.close()


@pytest.mark.parametrize("most", [3 * STRIDE, 2 * STRIDE + 100])
def test_a_full_disk_keeps_what_it_has_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    disk = DiskThread(slab(tmp_path), host())
    with files_may_grow_to(most), caplog.at_level(logging.WARNING):
        disk.submit([job(DiskOperation.WRITE, n, 0) for n in range(6)], DONE)
        whole = most // STRIDE
        assert [ok for _, ok in results(disk, 6)] == [True] * whole + [False] * (6 - whole)
        disk.submit([job(DiskOperation.WRITE, 0, 2), job(DiskOperation.READ, 1, 1)], DONE)
        assert [ok for _, ok in results(disk, 2)] == [True, True]
    assert not disk.broken
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        "the KV tier on disk does not grow any more"
    ]
    disk.close()


@pytest.mark.parametrize("full", [ENOSPC, EDQUOT])
def test_a_disk_without_room_for_the_index_still_has_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: int
) -> None:
    """As on a file system that copies on write, where overwriting takes room as well."""
    memory = host()
    disk = DiskThread(slab(tmp_path), memory)
    disk.submit([job(DiskOperation.WRITE, 1, 1)], DONE)
    results(disk, 1)

    def fail(*_: object) -> int:
        raise OSError(full, "no room")

    monkeypatch.setattr(os, "pwrite", fail)
    asked = [
        job(DiskOperation.READ, 1, 3),
        job(DiskOperation.READ, 2, 0),
        job(DiskOperation.WRITE, 0, 2),
    ]
    for one in asked:
        disk.submit([one], DONE)
    assert [ok for _, ok in results(disk, 3)] == [True, False, True]
    disk.submit([job(DiskOperation.READ, 0, 0)], DONE)
    assert [ok for _, ok in results(disk, 1)] == [True]
    assert [memory.slots[n].unique().tolist() for n in (0, 3)] == [[2], [1]]
    assert not disk.broken
    disk.close()


def test_another_error_ends_the_tier_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = slab(tmp_path)
    disk = DiskThread(files, host())

    def fail(*_: object) -> None:
        raise OSError(EIO, "a bad sector")

    monkeypatch.setattr(files, "write", fail)
    with caplog.at_level(logging.WARNING):
        disk.submit([job(DiskOperation.WRITE, n, 0) for n in range(3)], DONE)
        assert [ok for _, ok in results(disk, 3)] == [False] * 3
    assert disk.broken
    assert len(caplog.records) == 1
    disk.submit([job(DiskOperation.READ, 0, 1)], DONE)
    assert [ok for _, ok in results(disk, 1)] == [False]
    assert not disk.finished()  # each is told once
    disk.close()


def test_an_index_that_cannot_be_written_ends_the_tier_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskThread(slab(tmp_path), host())

    def fail(*_: object) -> int:
        raise OSError(EIO, "a bad sector")

    monkeypatch.setattr(os, "pwrite", fail)
    disk.submit([job(DiskOperation.WRITE, n, 0) for n in range(2)], DONE)
    assert [ok for _, ok in results(disk, 2)] == [False] * 2
    disk.close()
    assert disk.broken


def test_what_is_submitted_is_written_before_the_end(tmp_path: Path) -> None:
    disk = DiskThread(slab(tmp_path), host())
    disk.submit([job(DiskOperation.WRITE, n, n) for n in range(4)], DONE)
    disk.close()
    assert len(slab(tmp_path).known()) == 4


def test_a_process_that_does_not_close_it_ends_all_the_same(tmp_path: Path) -> None:
    """As a node that is told to stop: nobody waits for the thread."""
    before = {*threading.enumerate()}
    disk = DiskThread(slab(tmp_path), host())
    begun = {*threading.enumerate()} - before
    assert [thread.daemon for thread in begun] == [True]
    disk.close()
    assert not any(thread.is_alive() for thread in begun)


def over_disk(path: Path, engine: FakeEngine, slots: int = 8) -> Tiers:
    """Everything as in a node, but for the model."""
    memory = torch.frombuffer(engine.memory, dtype=torch.uint8).view(engine.kv.num_blocks, -1)
    below, book = HostMemory(memory, slots), TierBook(HostBook(slots), memory.shape[1])
    files = Slab.open(path, "model", memory.shape[1], 40 * PAGE)
    book.add_disk(DiskBook(files.places, files.known()))
    engine.kv.lower_tiers = book
    engine.tiers = tiers = Tiers(book, below, DiskThread(files, below), time.monotonic)
    return tiers


def arrivals(seed: int) -> list[Arrival | str]:
    random, happens = Random(seed), list[Arrival | str]()
    for _ in range(15):
        prompt = (random.randint(0, 1), 0, 1, 1) * random.randint(1, 5)
        happens += [Arrival(prompt, 6, None, 0, random.choice(["generate", "prefill"])), "turn"]
    return happens


def test_over_a_real_disk_and_many_restarts_the_tokens_are_the_same(tmp_path: Path) -> None:
    found = 0
    for seed in range(12):
        engine = engine_for({"chunk": 8, "seats": 4, "block_size": 2}, spare=seed % 4)
        tiers = over_disk(tmp_path, engine)
        tiers.fetch_s = 0.05 if seed % 3 == 0 else 10.0
        play_patiently(engine, arrivals(seed))
        tiers.close()
        found += tiers.book.load[1].loaded
    assert found > 20


def play_patiently(engine: FakeEngine, happens: list[Arrival | str]) -> None:
    """A turn that has nothing to do but wait for the disk is not one."""
    schedule = engine.schedule

    def until_something_runs() -> list[Admitted]:
        admitted = list(schedule())
        while engine.load.fetching and not engine.scheduler.batch:
            admitted += schedule()
        return admitted

    engine.schedule = until_something_runs  # type: ignore[method-assign]
    play(engine, happens)


def test_a_disk_that_fills_up_harms_no_request_and_keeps_what_fits(tmp_path: Path) -> None:
    engine = engine_for({"chunk": 8, "seats": 4, "block_size": 2}, spare=1)
    tiers = over_disk(tmp_path, engine, slots=4)
    schedule, deadline = engine.schedule, time.monotonic() + 10

    def once_all_is_written() -> Sequence[Admitted]:
        """Or a slow disk is spared most blocks."""
        while tiers.book._writing:
            assert time.monotonic() < deadline
            tiers.collect_finished_jobs()
        return schedule()

    engine.schedule = once_all_is_written  # type: ignore[method-assign]
    with files_may_grow_to(5 * PAGE):
        play_patiently(engine, arrivals(1))
        once_all_is_written()
    on_disk = tiers.book.load[1]
    assert on_disk.on
    assert 0 < on_disk.blocks <= 5 < on_disk.stored
    tiers.book.check()
    tiers.close()


def test_a_disk_without_room_for_anything_is_off() -> None:
    disk = DiskBook(3)
    assert disk.begin(b"one") == 0
    assert disk.begin(b"two") == 1
    disk.failed(b"one")
    assert disk.has_places  # the other may still be written
    disk.failed(b"two")
    assert not disk.has_places
    assert disk.begin(b"three") is None
    disk.check()
