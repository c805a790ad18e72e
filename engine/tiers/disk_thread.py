"""The thread that reads and writes blocks on disk, so that the engine never waits for it."""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from engine.tiers.host_memory import CopyEvent, HostMemory
from engine.tiers.moves import DiskJob, DiskOperation
from engine.tiers.slab import FULL, Slab

log = logging.getLogger(__name__)


class DiskThread:
    """Owns a slab. Does one job at a time, reads before writes, each kind in its order.

    A write for which the disk has no room fails, and nothing else does. After any other error
    nothing is read or written any more, and every job fails.
    """

    def __init__(self, slab: Slab, host: HostMemory) -> None:
        self._slab, self._slots = slab, host.slots.numpy()
        self._reads: deque[tuple[DiskJob, CopyEvent]] = deque()
        self._writes: deque[tuple[DiskJob, CopyEvent]] = deque()
        self._finished: deque[tuple[DiskJob, bool]] = deque()
        self._work = threading.Condition()
        self._ends = False
        self._broken = self._full = False
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    @property
    def broken(self) -> bool:
        """Whether the disk has failed for good."""
        return self._broken

    def submit(self, jobs: Sequence[DiskJob], after: CopyEvent) -> None:
        """Queue jobs, to be begun once the copies `after` are done."""
        with self._work:
            for job in jobs:
                queue = self._reads if job.operation is DiskOperation.READ else self._writes
                queue.append((job, after))
            self._work.notify()

    def finished(self) -> Sequence[tuple[DiskJob, bool]]:
        """The jobs that ended since the last call, and whether each succeeded."""
        if self._broken:  # the thread that would report them has ended
            with self._work:
                self._finished += [(job, False) for job, _ in (*self._reads, *self._writes)]
                self._reads.clear()
                self._writes.clear()
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def close(self) -> None:
        """Finish queued writes, and end the thread."""
        with self._work:
            self._ends = True
            self._work.notify()
        self._thread.join()
        self._slab.close()

    def _run(self) -> None:
        try:
            for job, after in self._queued():
                ok = False
                try:
                    after.wait()
                    ok = self._carry_out(job)
                finally:
                    self._finished.append((job, ok))
        except OSError as error:
            log.error("the KV tier on disk is off: %s: %s", self._slab.folder, error)
        finally:
            self._broken = True

    def _carry_out(self, job: DiskJob) -> bool:
        slot = self._slots[job.slot].data
        if job.operation is DiskOperation.READ:
            return self._slab.read(job.key, job.place, slot)
        try:
            self._slab.write(job.key, job.place, slot)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._note_full(error)
            return False
        return True

    def _note_full(self, error: OSError) -> None:
        if not self._full:
            folder = self._slab.folder
            log.warning("the KV tier on disk does not grow any more: %s: %s", folder, error)
        self._full = True

    def _queued(self) -> Iterator[tuple[DiskJob, CopyEvent]]:
        while True:
            with self._work:
                while not (self._reads or self._writes):
                    if self._ends:
                        return
                    self._work.wait()
                one = (self._reads or self._writes).popleft()
            yield one
