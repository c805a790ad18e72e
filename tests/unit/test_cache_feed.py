"""Subscribers to the changes of a prefix cache know what it has, whatever they missed."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from random import Random

import pytest

from api.grpc import cache_feed
from api.grpc.cache_feed import CacheBatch, CacheFeed, TooManySubscribers
from engine.cache_events import BlocksRemoved, BlocksStored, CacheEvent, Medium

BLOCK, KEPT, START = 2, 4, 1_000.0
FIRST = int(START * 1000) + 1  # the number of the first batch
Place = tuple[bytes, Medium]
KV = Medium.KV_MEMORY


def feed(kept: int = KEPT) -> CacheFeed:
    return CacheFeed(BLOCK, kept, clock=lambda: START)


def stored(*keys: int, parent: int | None = None, medium: Medium = KV) -> BlocksStored:
    """Blocks of tokens that tell which block they are of."""
    tokens = tuple(token for key in keys for token in (key, key + 1_000))
    above = None if parent is None else name(parent)
    return BlocksStored(tuple(map(name, keys)), above, tokens, "poet", "salt", medium)


def name(key: int) -> bytes:
    return key.to_bytes(16, "big")


class Mirror:
    """A subscriber's knowledge of the cache."""

    def __init__(self) -> None:
        self.blocks, self.number = dict[Place, tuple[bytes | None, tuple[int, ...]]](), 0
        self.late = set[bytes]()  # parents that were not there before their children

    def hear(self, batch: CacheBatch) -> None:
        part = batch.part
        if part is None or part.index > 0:
            assert batch.number == self.number + 1
        if part is not None and part.index == 0:
            self.blocks.clear()
            self.late.clear()
        for event in batch.events:
            self.follow(event)
        self.number = batch.number
        if part is not None and part.index == part.count - 1:
            assert len(self.blocks) == part.blocks
            assert not self.late & {key for key, _ in self.blocks}

    def follow(self, event: CacheEvent) -> None:
        for index, key in enumerate(event.keys):
            if isinstance(event, BlocksRemoved):
                del self.blocks[key, event.medium]
                continue
            parent = event.keys[index - 1] if index else event.parent
            if parent is not None and all(parent != known for known, _ in self.blocks):
                self.late.add(parent)
            tokens = event.tokens[index * BLOCK : (index + 1) * BLOCK]
            assert (key, event.medium) not in self.blocks
            self.blocks[key, event.medium] = parent, tokens


async def heard(batches: AsyncGenerator[CacheBatch], count: int) -> list[CacheBatch]:
    async with asyncio.timeout(10):
        return [await anext(batches) for _ in range(count)]


async def test_a_new_subscriber_is_told_what_is_there_and_then_what_happens() -> None:
    told = feed()
    told.publish([stored(1, 2), stored(3, parent=1)])
    told.publish([BlocksRemoved((name(2),))])
    async with aclosing(told.subscribe(0)) as batches:
        (snapshot,) = await heard(batches, 1)
        told.publish([stored(4, parent=3)])
        (next_,) = await heard(batches, 1)
    assert snapshot.number == FIRST + 1
    assert snapshot.part == cache_feed.SnapshotPart(0, 1, 2)
    assert snapshot.events == [stored(1), stored(3, parent=1)]
    assert (next_.number, next_.at, next_.part) == (FIRST + 2, START, None)
    assert next_.events == [stored(4, parent=3)]


async def test_an_empty_cache_is_told_as_well() -> None:
    """What the subscriber knew of an earlier life of the node is not so any more."""
    told = feed()
    told.publish([])
    async with aclosing(told.subscribe(17)) as batches:
        (snapshot,) = await heard(batches, 1)
    assert (snapshot.number, snapshot.events) == (FIRST - 1, [])
    assert snapshot.part == cache_feed.SnapshotPart(0, 1, 0)


@pytest.mark.parametrize("missed", range(KEPT + 1))
async def test_what_is_kept_is_told_again(missed: int) -> None:
    told = feed()
    for key in range(KEPT + 3):
        told.publish([stored(key)])
    last = FIRST + KEPT + 2
    async with aclosing(told.subscribe(last - missed)) as batches:
        told.publish([stored(99)])
        got = await heard(batches, missed + 1 if missed < KEPT else 1)
    if missed < KEPT:
        assert [one.number for one in got] == [*range(last - missed + 1, last + 2)]
        assert [one.part for one in got] == [None] * (missed + 1)
    else:  # the oldest went as the new one came
        assert got[0].part is not None


async def test_numbers_that_are_not_ours_begin_anew() -> None:
    told = feed()
    told.publish([stored(1)])
    for after in (FIRST + 1, 2**64 - 1, FIRST - KEPT - 1):
        async with aclosing(told.subscribe(after)) as batches:
            (snapshot,) = await heard(batches, 1)
        assert snapshot.part is not None


async def test_a_block_has_a_copy_in_each_medium() -> None:
    told = feed()
    lower = stored(1, medium=Medium.DISK)
    told.publish([stored(1), lower, BlocksRemoved((name(1),))])
    async with aclosing(told.subscribe(0)) as batches:
        (snapshot,) = await heard(batches, 1)
    assert snapshot.events == [lower]


async def test_a_parent_that_was_stored_again_comes_first() -> None:
    told = feed()
    told.publish([stored(1, 2, 3), BlocksRemoved((name(1),)), stored(1)])
    async with aclosing(told.subscribe(0)) as batches:
        (snapshot,) = await heard(batches, 1)
    assert snapshot.events == [stored(1), stored(2, parent=1), stored(3, parent=2)]


async def test_who_has_a_part_of_a_snapshot_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The numbers of its parts are those of batches, which would be told in their place."""
    monkeypatch.setattr(cache_feed, "TOKENS_PER_PART", BLOCK)
    told = feed()
    for key in range(3):
        told.publish([stored(key)])
    async with aclosing(told.subscribe(0)) as batches:
        (first,) = await heard(batches, 1)
        (second,) = await heard(batches, 1)
    assert [one.number for one in (first, second)] == [FIRST, FIRST + 1]
    async with aclosing(told.subscribe(second.number)) as batches:
        again = await heard(batches, 3)
        told.publish([stored(9)])
        (live,) = await heard(batches, 1)
    assert [one.number for one in again] == [FIRST, FIRST + 1, FIRST + 2]
    assert all(one.part is not None for one in again)
    assert live.number == FIRST + 3
    async with aclosing(told.subscribe(FIRST + 2)) as batches:
        assert (await heard(batches, 1))[0] == live


async def test_closing_ends_subscriptions() -> None:
    told = feed()
    batches = told.subscribe(0)
    await heard(batches, 1)
    waiting = asyncio.create_task(anext(batches, None))
    await asyncio.wait([waiting], timeout=0)
    told.close()
    async with asyncio.timeout(10):
        assert await waiting is None
    assert [one async for one in told.subscribe(0)] == []


async def test_subscribers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_feed, "MOST_SUBSCRIBERS", 1)
    told = feed()
    async with aclosing(told.subscribe(0)) as batches:
        await heard(batches, 1)
        with pytest.raises(TooManySubscribers, match="1 are subscribed already"):
            await anext(told.subscribe(0))
    async with aclosing(told.subscribe(0)) as batches:
        await heard(batches, 1)  # the place is free again


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_happens_a_subscriber_knows_what_there_is(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Batches come while it reads, or is away; it leaves in the middle of snapshots."""
    random = Random(seed)
    monkeypatch.setattr(cache_feed, "TOKENS_PER_PART", BLOCK * random.choice([1, 2, 50]))
    told, cache, mirror = feed(kept=random.choice([1, 3, 8])), Cache(random), Mirror()
    for _ in range(20):
        for _ in range(random.randrange(6)):
            told.publish(cache.change())
        async with aclosing(told.subscribe(mirror.number)) as batches:
            for _ in range(random.randrange(8)):
                if random.random() < 0.3:
                    told.publish(cache.change())
                if (batch := await next_or_none(batches)) is None:
                    break
                mirror.hear(batch)
    async with aclosing(told.subscribe(mirror.number)) as batches:
        while (batch := await next_or_none(batches)) is not None:
            mirror.hear(batch)
    assert set(mirror.blocks) == cache.places


async def next_or_none(batches: AsyncGenerator[CacheBatch]) -> CacheBatch | None:
    """None if there is nothing to be told yet."""
    waiting = asyncio.create_task(anext(batches, None))
    for _ in range(5):
        await asyncio.wait([waiting], timeout=0)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    await asyncio.wait([waiting])
    return None


class Cache:
    """A prefix cache of few blocks, which stores and evicts at random."""

    def __init__(self, random: Random) -> None:
        self.random, self.places = random, set[Place]()

    def change(self) -> list[CacheEvent]:
        return list(self._events())

    def _events(self) -> Iterable[CacheEvent]:
        for _ in range(self.random.randrange(1, 4)):
            medium = self.random.choice([Medium.KV_MEMORY, Medium.DISK])
            first = self.random.randrange(12)
            keys = [key for key in (first, first + 1) if (name(key), medium) not in self.places]
            if self.random.random() < 0.4 and self.places:
                key, medium = self.random.choice(sorted(self.places, key=str))
                self.places.remove((key, medium))
                yield BlocksRemoved((key,), medium)
            elif keys == [first, first + 1]:
                self.places |= {(name(key), medium) for key in keys}
                above = first - 1 if first else None
                yield stored(*keys, parent=above, medium=medium)
