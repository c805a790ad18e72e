"""The changes of a prefix cache, batch by batch, for subscribers that come and go.

A subscriber names the last batch that it has. If it has none, or what follows is not kept any
more, it is first told what the cache has: it never has to guess what it missed. One that reads
slowly is overtaken by what is kept, and then told the same way; nothing waits for it.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from api.grpc.live_blocks import LiveBlocks
from engine.cache_events import CacheEvent

TOKENS_PER_PART = 2**13
"""Of a snapshot: other calls wait while a part is written, and clients take 4 MiB."""
MOST_SUBSCRIBERS = 64


class TooManySubscribers(Exception):
    """Each costs a part of the loop's time."""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Where a batch belongs in a snapshot of so many parts, and of so many blocks."""

    index: int
    count: int
    blocks: int


@dataclass(frozen=True, slots=True)
class CacheBatch:
    """What happened `at` one time, in seconds since 1970; or a part of what the cache has."""

    number: int
    at: float
    events: Sequence[CacheEvent]
    part: SnapshotPart | None = None


@dataclass(slots=True)
class CacheFeed:
    """`kept` is how many batches a subscriber may be behind. They are counted from the
    milliseconds since 1970 at the start: numbers of two lives of a node cannot be confused.
    """

    block_size: int
    kept: int
    clock: Callable[[], float] = time.time
    _last: int = 0
    _resumable_from: int = 0
    _subscribers: int = 0
    _closed: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _live: LiveBlocks = field(init=False)
    _batches: deque[CacheBatch] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing has happened yet."""
        self._live = LiveBlocks(self.block_size)
        self._batches = deque(maxlen=self.kept)
        self._last = int(self.clock() * 1000)

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Tell all subscribers one batch."""
        if not events:
            return
        self._last += 1
        self._batches.append(CacheBatch(self._last, self.clock(), events))
        for event in events:
            self._live.apply(event)
        self._wake()

    def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        self._wake()

    async def subscribe(self, after: int) -> AsyncGenerator[CacheBatch]:
        """All batches behind the one of this number, 0: none, until `close`. Raises
        TooManySubscribers.
        """
        if self._subscribers >= MOST_SUBSCRIBERS:
            raise TooManySubscribers(f"{self._subscribers} are subscribed already")
        self._subscribers += 1
        try:
            async for batch in self._told(after if after >= self._resumable_from else 0):
                yield batch
        finally:
            self._subscribers -= 1

    async def _told(self, after: int) -> AsyncGenerator[CacheBatch]:
        while not self._closed:
            if after == self._last:
                await self._news.wait()
            for batch in self._next(after):
                yield batch
                after = batch.number

    def _next(self, after: int) -> Iterable[CacheBatch]:
        """The batch behind that one; or what the cache has, if it is kept no longer."""
        behind = self._last - after
        if 0 <= behind <= len(self._batches):
            return [self._batches[-behind]] if behind else []
        return self._snapshot()

    def _snapshot(self) -> Iterator[CacheBatch]:
        """Its parts have the numbers up to that of the last batch, which are those of batches,
        too: who has some of the parts cannot go on from there.
        """
        events, blocks, at = self._live.snapshot(), len(self._live), self.clock()
        each = max(1, TOKENS_PER_PART // self.block_size)
        count = max(1, -(-blocks // each))
        first = self._last - count + 1
        if count > 1:
            self._resumable_from = self._last
        for index in range(count):
            part = SnapshotPart(index, count, blocks)
            yield CacheBatch(first + index, at, list(islice(events, each)), part)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
