"""The tiers below KV memory: TierBook decides, HostMemory and a Disk carry it out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.request import RequestId
from engine.tiers.book import TierBook
from engine.tiers.host_memory import DONE, CopyEvent, HostMemory
from engine.tiers.moves import DiskJob

FETCH_S = 1.0  # the longest wait for the disk; after it, a request computes its KV


class Disk(Protocol):
    """Carries out disk jobs in its own thread: reads before writes."""

    def submit(self, jobs: Sequence[DiskJob], after: CopyEvent) -> None:
        """Queue jobs, to be begun once the copies `after` are done; never waits."""

    def finished(self) -> Sequence[tuple[DiskJob, bool]]:
        """The jobs that ended since the last call, each once, and whether it succeeded."""

    @property
    def broken(self) -> bool:
        """Whether it has failed for good; then all jobs fail."""

    def close(self) -> None:
        """Finish the submitted jobs, then end the thread."""


@dataclass(slots=True)
class Tiers:
    """Called between batches: `collect_finished_jobs` before one is chosen, then `carry_out`.

    `carry_out` must be called before anything, here or on another machine, writes to blocks
    that the book's owner has handed out, or reads blocks that it has restored.
    """

    book: TierBook
    host: HostMemory
    disk: Disk | None
    clock: Callable[[], float]
    fetch_s: float = FETCH_S
    _copied: CopyEvent = DONE  # the end of the last copies: they may still use slots
    _since: dict[RequestId, float] = field(default_factory=dict)

    def collect_finished_jobs(self) -> None:
        """Record the jobs that the disk finished, and end waits that took too long."""
        if self.disk is None:
            return
        for job, ok in self.disk.finished():
            self.book.finish_job(job, ok=ok)
        if self.disk.broken:
            self.book.lose_disk()
        self._end_waits()

    def carry_out(self, *, wait: bool = False) -> None:
        """Start the copies and jobs that the book lists; with `wait`, wait for all copies."""
        if self.book.copies:
            self._copied = self.host.carry_out(self.book.copies)
            self.book.copies = []
        if self.book.jobs and self.disk is not None:
            self.disk.submit(self.book.jobs, self._copied)
            self.book.jobs = []
        if self.book.waiting or self._since:
            now = self.clock()
            self._since = {one: self._since.get(one, now) for one in self.book.waiting}
        if wait:
            self._copied.wait()

    def close(self) -> None:
        """Close the disk, if the process continues without the engine."""
        if self.disk is not None:
            self.disk.close()

    def _end_waits(self) -> None:
        now = self.clock()
        for owner, since in self._since.items():
            if now - since >= self.fetch_s:
                self.book.stop_waiting(owner)
