"""Which evicted KV blocks the lower tiers hold. Bookkeeping only: no bytes, no disk, no clock.

    KV memory ── store ─▶ slot of host memory ── DiskJob(WRITE) ─▶ place on disk
        ▲                     │        ▲                                │
        └───── restore ───────┘        └───────── DiskJob(READ) ────────┘

A block is identified by its key, the hash of its content. When KV memory evicts a block, its
bytes are copied to a slot of host memory, and from there written to disk, if there is a disk. A
block is restored by a copy from its slot before the batch runs. Reading from disk to a slot
takes a while, so a request that needs it (`fetch`) leaves the waiting queue until
`take_ended_fetches` returns it.

`copies` are carried out in their order, and `jobs` after them; `finish_job` reports each job.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.api import TierLoad
from engine.cache_events import Medium
from engine.request import RequestId
from engine.tiers.disk_book import DiskBook
from engine.tiers.host_book import HostBook
from engine.tiers.listening import TierListener
from engine.tiers.moves import Copy, DiskJob, DiskOperation


@dataclass(slots=True)
class _TierCounts:
    stored: int = 0
    loaded: int = 0
    misses: int = 0


@dataclass(slots=True)
class _DiskFetch:
    """The keys `pinned` in slots for one request; those `awaited` are still being read."""

    pinned: set[bytes] = field(default_factory=set)
    awaited: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class TierBook:
    """Host memory, and a disk below it if there is one; `disk` is None once it is lost.

    At most half of the slots are pinned by fetches, and at most half by writes to disk: beyond
    that nothing more is fetched, and evicted blocks are kept in memory only.
    """

    host: HostBook
    block_bytes: int
    disk: DiskBook | None = None
    copies: list[Copy] = field(default_factory=list)
    jobs: list[DiskJob] = field(default_factory=list)
    _fetches: dict[RequestId, _DiskFetch] = field(default_factory=dict)
    _arriving: set[bytes] = field(default_factory=set)
    _writing: set[bytes] = field(default_factory=set)
    _overdue: set[bytes] = field(default_factory=set)
    _ended: list[RequestId] = field(default_factory=list)
    _in_host: _TierCounts = field(default_factory=_TierCounts)
    _on_disk: _TierCounts = field(default_factory=_TierCounts)
    _had_disk: bool = False
    _pinned: int = 0  # by fetches; a key counts once for each request that wants it

    def add_disk(self, disk: DiskBook) -> None:
        """Add the disk tier, before first use; `load` reports it even after it is lost."""
        self.disk, self._had_disk = disk, True

    def report_to(self, listener: TierListener) -> None:
        """Tell the listener what enters and leaves each tier from now on."""
        self.host.listener = listener
        if self.disk is not None:
            self.disk.listener = listener

    def media_of(self, key: bytes) -> Iterator[Medium]:
        """The tiers that a key can be read from."""
        if key in self.host and key not in self._arriving:
            yield Medium.HOST_MEMORY
        if self.disk is not None and key in self.disk:
            yield Medium.DISK

    def store(self, key: bytes, block: int) -> None:
        """KV memory evicts a block: copy its bytes to host memory, if a slot is free."""
        if self.host.find(key) is not None:
            return
        slot = self.host.place(key)
        if slot is None:
            return
        self.copies.append(Copy(block, slot, out=True))
        self.host.filled(key)
        self._in_host.stored += 1
        if self.disk is not None and len(self._writing) < self.host.slots // 2:
            place = self.disk.begin(key)
            if place is not None:
                self.host.pin(key)
                self._writing.add(key)
                self.jobs.append(DiskJob(DiskOperation.WRITE, key, slot, place))

    def touch(self, keys: Sequence[bytes]) -> None:
        """Mark keys as recently used, the first of them as the most recent."""
        for key in reversed(keys):
            self.host.find(key)

    def restore(self, key: bytes, block: int) -> bool:
        """Copy a key's KV into a block before the next batch; False: not in host memory."""
        slot = self.host.find(key)
        if slot is None or key in self._arriving:
            return False
        self.copies.append(Copy(block, slot, out=False))
        self._in_host.loaded += 1
        return True

    def count_misses(self, blocks: int) -> None:
        """Count blocks that were looked for in the tiers, and have to be computed."""
        self._in_host.misses += blocks
        self._on_disk.misses += blocks

    def fetch(self, owner: RequestId, keys: Iterable[bytes]) -> bool:
        """Read consecutive `keys` from disk into host memory, as far as they are there.

        Keys that are read, or already in host memory, stay there until `release`. False, and no
        change: nothing needs to be read from disk.
        """
        disk = self.disk
        if disk is None or self._overdue:
            return False
        fetch = self._fetches[owner] = _DiskFetch()
        for key in keys:
            if self._pinned >= self.host.slots // 2 or not self._bring_to_host(key, disk):
                break
            self.host.pin(key)
            self._pinned += 1
            fetch.pinned.add(key)
        fetch.awaited = fetch.pinned & self._arriving
        if not fetch.awaited:
            self.release(owner)
        return bool(fetch.awaited)

    def release(self, owner: RequestId) -> None:
        """Unpin what was fetched for a request; no error if nothing was."""
        fetch = self._fetches.pop(owner, None)
        if fetch is not None:
            self._pinned -= len(fetch.pinned)
            for key in fetch.pinned:
                self.host.unpin(key)

    def stop_waiting(self, owner: RequestId) -> None:
        """End a request's wait: it continues with what was read in time. The disk is slow, so
        nothing more is fetched until the overdue reads have finished.
        """
        fetch = self._fetches.get(owner)
        if fetch is not None and fetch.awaited:
            self._overdue |= fetch.awaited
            fetch.awaited = set()
            self._ended.append(owner)

    def finish_job(self, job: DiskJob, *, ok: bool) -> None:
        """Record that a job ended; if not `ok` it failed, and its bytes are lost."""
        if job.operation is DiskOperation.WRITE:
            self._written(job.key, ok=ok)
        else:
            self._read(job.key, ok=ok)

    def lose_disk(self) -> None:
        """The disk is broken: stop reading and writing."""
        if self.disk is not None:
            self.disk.lose_all()
        self.disk = None
        for owner in self._fetches:
            self.stop_waiting(owner)

    def take_ended_fetches(self) -> Sequence[RequestId]:
        """Requests whose fetch ended since the last call; what was read is in host memory."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def waiting(self) -> Sequence[RequestId]:
        """The requests whose fetch is under way."""
        return [owner for owner, fetch in self._fetches.items() if fetch.awaited]

    @property
    def load(self) -> tuple[TierLoad, ...]:
        """The contents and traffic of each tier."""
        host, disk, block_bytes = self._in_host, self._on_disk, self.block_bytes
        counts = host.stored, host.loaded, host.misses
        tiers = [TierLoad("cpu", block_bytes, len(self.host), *counts)]
        if self._had_disk:
            held = 0 if self.disk is None else len(self.disk)
            counts = disk.stored, disk.loaded, disk.misses
            on = self.disk is not None and self.disk.has_places
            tiers.append(TierLoad("disk", block_bytes, held, *counts, on))
        return tuple(tiers)

    def check(self) -> None:
        """Raise if the bookkeeping is inconsistent. Slow, for tests."""
        assert self._pinned == sum(len(fetch.pinned) for fetch in self._fetches.values())
        self.host.check(self._pinned + len(self._writing) + len(self._arriving))
        if self.disk is not None:
            self.disk.check()

    def check_idle(self) -> None:
        """Raise if something is pinned for a request although there are no requests."""
        assert not self._fetches, f"kept for nobody: {sorted(self._fetches)}"

    def _bring_to_host(self, key: bytes, disk: DiskBook) -> bool:
        """Whether a key is in host memory, or a read from disk could be started."""
        if self.host.find(key) is not None:
            return True
        place = disk.find(key)
        if place is None:
            return False
        slot = self.host.place(key)
        if slot is None:
            return False
        self._arriving.add(key)
        self.host.pin(key)
        self.jobs.append(DiskJob(DiskOperation.READ, key, slot, place))
        return True

    def _written(self, key: bytes, *, ok: bool) -> None:
        self._writing.remove(key)
        self.host.unpin(key)
        if self.disk is None:
            return
        if ok:
            self.disk.written(key)
            self._on_disk.stored += 1
        else:
            self.disk.failed(key)

    def _read(self, key: bytes, *, ok: bool) -> None:
        self._arriving.remove(key)
        self._overdue.discard(key)
        if ok:
            self._on_disk.loaded += 1
            self.host.filled(key)
            self.host.unpin(key)
        else:
            self._forget(key)
        for owner, fetch in self._fetches.items():
            if key in fetch.awaited:
                fetch.awaited.remove(key)
                if not fetch.awaited:
                    self._ended.append(owner)

    def _forget(self, key: bytes) -> None:
        """A key could not be read: requests that wait for it continue without it."""
        self.host.drop(key)
        if self.disk is not None:
            self.disk.forget(key)
        for fetch in self._fetches.values():
            if key in fetch.pinned:
                fetch.pinned.remove(key)
                self._pinned -= 1
