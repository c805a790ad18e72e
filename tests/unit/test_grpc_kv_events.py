"""SubscribeKvEvents: what a prefix cache has and loses, as SMG's messages."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from api.grpc import cache_feed
from api.grpc.cache_feed import CacheFeed
from api.grpc.protos import kv_events_pb2 as pb
from api.grpc.server import VLLM_ENGINE
from engine.cache_events import BlocksRemoved, BlocksStored, Medium
from tests.fakes.grpc_server import Caller, serving
from tests.fakes.text import saying

START = 1_000.0
FIRST = 1_000_001
KEYS = bytes(15) + b"\x01", b"\xff" * 16, bytes(8) + b"\x01" + bytes(7)
HASHES = 1, -1, 2**56


@pytest.fixture
def feed() -> CacheFeed:
    return CacheFeed(2, 10, clock=lambda: START)


@asynccontextmanager
async def subscribed(caller: Caller, after: int = 0) -> AsyncGenerator[Any]:
    request = pb.SubscribeKvEventsRequest(start_sequence_number=after)
    call = caller.call("SubscribeKvEvents", request, VLLM_ENGINE)
    try:
        async with asyncio.timeout(10):
            yield call
    finally:
        call.cancel()


async def test_blocks_are_told_with_all_that_is_known_of_them(feed: CacheFeed) -> None:
    more = {"adapter": "clerk", "salt": "s", "medium": Medium.HOST_MEMORY}
    async with serving(saying("a"), cache_feed=feed) as caller, subscribed(caller) as call:
        assert await call.read() == pb.KvEventBatch(
            sequence_number=FIRST - 1,
            timestamp=START,
            events=[pb.KvCacheEvent(cleared=pb.KvCacheCleared())],
            dp_rank=0,
            snapshot=pb.KvSnapshotChunk(index=0, count=1, blocks=0),
        )
        feed.publish([BlocksStored(KEYS[:2], KEYS[2], (5, 6, 7, 8), **more)])  # type: ignore[arg-type]
        blocks = [
            pb.KvBlock(block_hash=key, token_ids=tokens, block_size=2, lora_id=2, cache_level=1)
            for key, tokens in zip(HASHES[:2], ([5, 6], [7, 8]), strict=True)
        ]
        stored = pb.KvBlocksStored(
            blocks=blocks,
            parent_block_hash=HASHES[2],
            tier=pb.KV_CACHE_TIER_HOST,
            medium="CPU",
            group_idx=0,
            lora_name="clerk",
            cache_salt="s",
        )
        assert await call.read() == pb.KvEventBatch(
            sequence_number=FIRST,
            timestamp=START,
            events=[pb.KvCacheEvent(stored=stored)],
            dp_rank=0,
        )
        feed.publish([BlocksRemoved(KEYS[:2], Medium.DISK)])
        removed = pb.KvBlocksRemoved(
            block_hashes=HASHES[:2],
            cache_level=2,
            tier=pb.KV_CACHE_TIER_DISK,
            medium="STORAGE",
            group_idx=0,
        )
        assert await call.read() == pb.KvEventBatch(
            sequence_number=FIRST + 1,
            timestamp=START,
            events=[pb.KvCacheEvent(removed=removed)],
            dp_rank=0,
        )


async def test_a_prompts_first_block_has_no_parent(feed: CacheFeed) -> None:
    feed.publish([BlocksStored(KEYS[:1], None, (5, 6))])
    async with serving(saying("a"), cache_feed=feed) as caller, subscribed(caller) as call:
        cleared, told = (await call.read()).events
    assert cleared.HasField("cleared")
    block = pb.KvBlock(block_hash=1, token_ids=[5, 6], block_size=2, cache_level=0)
    assert told.stored == pb.KvBlocksStored(
        blocks=[block], tier=pb.KV_CACHE_TIER_DEVICE, medium="GPU", group_idx=0
    )


async def test_only_the_first_part_of_a_snapshot_clears(
    feed: CacheFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_feed, "TOKENS_PER_PART", 2)
    feed.publish([BlocksStored(KEYS[:2], None, (5, 6, 7, 8))])
    async with serving(saying("a"), cache_feed=feed) as caller, subscribed(caller) as call:
        first, second = [await call.read() for _ in range(2)]
    assert [one.WhichOneof("data") for one in first.events] == ["cleared", "stored"]
    assert [one.WhichOneof("data") for one in second.events] == ["stored"]
    assert second.snapshot == pb.KvSnapshotChunk(index=1, count=2, blocks=2)


async def test_a_subscriber_goes_on_where_it_was(feed: CacheFeed) -> None:
    for key in KEYS[:2]:
        feed.publish([BlocksStored((key,), None, (5, 6))])
    async with (
        serving(saying("a"), cache_feed=feed) as caller,
        subscribed(caller, after=FIRST) as call,
    ):
        told = await call.read()
    assert (told.sequence_number, told.HasField("snapshot")) == (FIRST + 1, False)
    assert [block.block_hash for block in told.events[0].stored.blocks] == [HASHES[1]]


async def test_a_node_that_tells_no_events_says_so() -> None:
    async with serving(saying("a")) as caller, subscribed(caller) as call:
        with pytest.raises(grpc.aio.AioRpcError, match="--kv-events-config") as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_subscribers_beyond_the_limit_are_refused(
    feed: CacheFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_feed, "MOST_SUBSCRIBERS", 1)
    async with serving(saying("a"), cache_feed=feed) as caller:
        async with subscribed(caller) as call:
            await call.read()
            async with subscribed(caller) as refused:
                with pytest.raises(grpc.aio.AioRpcError, match="subscribed already") as told:
                    await refused.read()
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_subscription_ends_with_its_feed(feed: CacheFeed) -> None:
    async with serving(saying("a"), cache_feed=feed) as caller, subscribed(caller) as call:
        await call.read()
        feed.close()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
