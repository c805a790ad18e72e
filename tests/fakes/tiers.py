"""Tiers under the fake engine's memory, and a disk that does as it is told."""

from collections.abc import Callable, Sequence
from random import Random

import torch

from engine.tiers.book import TierBook
from engine.tiers.disk_book import DiskBook
from engine.tiers.host_book import HostBook
from engine.tiers.host_memory import CopyEvent, HostMemory
from engine.tiers.moves import DiskJob, DiskOperation
from engine.tiers.tiers import Tiers
from tests.fakes.engine import FakeEngine


class ScriptedDisk:
    """Bytes by place. What is submitted is done some calls of `finished` later, or fails.

    `chance` says of what, as a share: "late" of being done at each call, "fails" of each job,
    "breaks" of failing for good.
    """

    def __init__(self, host: HostMemory, random: Random, **chance: float) -> None:
        self.broken = False
        self.stopped = False
        self.done, self.failed = list[DiskJob](), list[DiskJob]()
        self._host, self._random, self._chance = host, random, chance
        self._content: dict[int, tuple[bytes, bytes]] = {}
        self._reads, self._writes = list[DiskJob](), list[DiskJob]()

    def submit(self, jobs: Sequence[DiskJob], after: CopyEvent) -> None:
        after.wait()
        self._reads += [job for job in jobs if job.operation is DiskOperation.READ]
        self._writes += [job for job in jobs if job.operation is DiskOperation.WRITE]

    def finished(self) -> Sequence[tuple[DiskJob, bool]]:
        news = list[tuple[DiskJob, bool]]()
        while not self.stopped and (self._reads or self._writes) and not self._happens("late"):
            job = (self._reads or self._writes).pop(0)
            self.done.append(job)
            news.append((job, self._carry_out(job)))
        return news

    def close(self) -> None:
        """Nothing to do."""

    def _carry_out(self, job: DiskJob) -> bool:
        slot = self._host.slots[job.slot]
        self.broken = self.broken or self._happens("breaks")
        if self.broken or self._happens("fails"):
            if job.operation is DiskOperation.READ:
                slot.fill_(255)
            self._content.pop(job.place, None)
            self.failed.append(job)
            return False
        if job.operation is DiskOperation.WRITE:
            self._content[job.place] = job.key, slot.numpy().tobytes()
            return True
        key, content = self._content[job.place]
        assert key == job.key, "the book sent a reader to another's place"
        slot.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        return True

    def _happens(self, what: str) -> bool:
        return self._random.random() < self._chance.get(what, 0.0)


def put_tiers_under(
    engine: FakeEngine,
    *,
    slots: int,
    places: int = 0,
    disk: Callable[[HostMemory], ScriptedDisk] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Tiers:
    """Real books, real copies, over the fake engine's bytes."""
    memory = torch.frombuffer(engine.memory, dtype=torch.uint8).view(engine.kv.num_blocks, -1)
    host = HostMemory(memory, slots)
    book = TierBook(HostBook(slots), memory.shape[1])
    if disk:
        book.add_disk(DiskBook(places))
    engine.kv.lower_tiers = book
    engine.tiers = tiers = Tiers(book, host, disk(host) if disk else None, clock)
    return tiers
