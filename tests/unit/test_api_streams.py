"""Many streams as one: order within each, errors as they are, nothing left open."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest

from api.starting import STARTING
from api.streams import AHEAD, CLOSING, Streams
from tests.fakes.waiting import comes_true

TURNS = 10


class Source:
    """Counts to `upto`, and knows how far it was read and whether it was closed."""

    def __init__(self, upto: int, error: Exception | None = None) -> None:
        self.upto, self.error, self.read, self.closed = upto, error, 0, False

    async def stream(self) -> AsyncGenerator[int]:
        try:
            while self.read < self.upto:
                self.read += 1
                yield self.read
            if self.error:
                raise self.error
        finally:
            self.closed = True


async def test_all_items_come_and_each_streams_in_order() -> None:
    sources = {"a": Source(5), "b": Source(0), "c": Source(200)}
    said: dict[str, list[int]] = {key: [] for key in sources}
    async with Streams[str, int]() as streams:
        for key, source in sources.items():
            streams.open(key, source.stream())
        while news := await streams.next():
            said[news[0]].append(news[1])
    assert said == {key: list(range(1, source.upto + 1)) for key, source in sources.items()}


async def test_a_slow_reader_makes_the_streams_wait() -> None:
    source = Source(10 * AHEAD)
    async with Streams[str, int]() as streams:
        streams.open("a", source.stream())
        for _ in range(20 * AHEAD):
            await asyncio.sleep(0)
        assert source.read <= AHEAD + 1


async def test_of_many_streams_a_few_start_at_a_time() -> None:
    sources, started = [Source(1) for _ in range(20 * STARTING)], [0]
    async with Streams[int, int]() as streams:
        for key, source in enumerate(sources):
            streams.open(key, source.stream())
        while started[-1] < AHEAD:
            await asyncio.sleep(0)
            started.append(sum(one.read for one in sources))
        while await streams.next():
            pass
    assert max(after - before for before, after in pairwise(started)) == STARTING
    assert all(one.closed for one in sources)


async def test_streams_that_have_not_started_are_left_as_they_are() -> None:
    sources = [Source(1) for _ in range(3 * STARTING)]
    async with Streams[int, int]() as streams:
        for key, source in enumerate(sources):
            streams.open(key, source.stream())
        await streams.next()
    assert [one.closed for one in sources] == [bool(one.read) for one in sources]
    assert not sources[-1].read


class Crowd:
    """Many streams that say nothing, and how many of them are open."""

    def __init__(self, size: int) -> None:
        self.size, self.opened, self.closed = size, 0, 0
        self._never = asyncio.Event()

    @property
    def open(self) -> int:
        return self.opened - self.closed

    async def stream(self) -> AsyncGenerator[int]:
        self.opened += 1
        try:
            await self._never.wait()
            yield 0
        finally:
            self.closed += 1

    async def visit(self, most: int, leaves: asyncio.Event) -> None:
        """Open them all, and leave once so many have started."""
        async with Streams[int, int]() as streams:
            for key in range(self.size):
                streams.open(key, self.stream())
            await comes_true(lambda: self.opened >= most)
            leaves.set()


async def test_of_many_streams_a_few_are_closed_at_a_time() -> None:
    crowd, leaves = Crowd(20 * CLOSING), asyncio.Event()
    visit = asyncio.create_task(crowd.visit(crowd.size, leaves))
    await leaves.wait()
    left = [crowd.open]
    while not visit.done():
        await asyncio.sleep(0)
        left.append(crowd.open)
    assert max(before - after for before, after in pairwise(left)) == CLOSING
    assert not crowd.open


async def test_none_starts_while_others_are_closed() -> None:
    crowd = Crowd(40 * STARTING)
    await crowd.visit(10 * STARTING, asyncio.Event())
    assert crowd.opened == crowd.closed == 10 * STARTING


async def test_who_is_cancelled_while_leaving_still_closes_them_all() -> None:
    crowd, leaves = Crowd(20 * CLOSING), asyncio.Event()
    visit = asyncio.create_task(crowd.visit(crowd.size, leaves))
    await leaves.wait()
    await comes_true(lambda: crowd.closed)
    assert crowd.open
    visit.cancel()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not crowd.open
    assert visit.cancelled()


async def test_leaving_closes_streams_that_are_full_quiet_or_done() -> None:
    full, done = Source(10 * AHEAD), Source(1)
    never, quiet_closed = asyncio.Event(), asyncio.Event()

    async def quiet() -> AsyncGenerator[int]:
        try:
            await never.wait()
            yield 0
        finally:
            quiet_closed.set()

    async with Streams[str, int]() as streams:
        streams.open("full", full.stream())
        streams.open("done", done.stream())
        streams.open("quiet", quiet())
        await streams.next()
    assert full.closed
    assert done.closed
    assert quiet_closed.is_set()


async def test_what_a_stream_raises_is_raised_after_what_it_said() -> None:
    source = Source(1, error=LookupError("gone"))
    async with Streams[str, int]() as streams:
        streams.open("a", source.stream())
        assert await streams.next() == ("a", 1)
        with pytest.raises(LookupError):
            await streams.next()
