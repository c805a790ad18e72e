"""Cache events as SMG's messages."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import grpc

from api.grpc.cache_feed import CacheBatch, CacheFeed, TooManySubscribers
from api.grpc.calls import Context
from api.grpc.protos import kv_events_pb2 as pb
from engine.cache_events import BlocksRemoved, BlocksStored, CacheEvent, Medium

RANK, GROUP = 0, 0
TIERS = {
    Medium.KV_MEMORY: (pb.KV_CACHE_TIER_DEVICE, 0, "GPU"),
    Medium.HOST_MEMORY: (pb.KV_CACHE_TIER_HOST, 1, "CPU"),
    Medium.DISK: (pb.KV_CACHE_TIER_DISK, 2, "STORAGE"),
}
"""Its tier, the level of older readers, and vLLM's name."""
CLEARED = pb.KvCacheEvent(cleared=pb.KvCacheCleared())
OFF = "this node tells no KV cache events: start it with --kv-events-config"
HASH_BYTES = 8


async def subscription(
    feed: CacheFeed | None, adapters: Sequence[str], after: int, context: Context
) -> AsyncGenerator[pb.KvEventBatch]:
    """All batches behind the one of this number, as messages. `adapters` are counted from 1."""
    if feed is None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, OFF)
    writer = _Writer(adapters)
    try:
        async with aclosing(feed.subscribe(after)) as batches:
            async for batch in batches:
                yield writer.batch(batch)
    except TooManySubscribers as refusal:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(refusal))


@dataclass(frozen=True, slots=True)
class _Writer:
    adapters: Sequence[str]

    def batch(self, batch: CacheBatch) -> pb.KvEventBatch:
        part = batch.part
        made = pb.KvEventBatch(
            sequence_number=batch.number,
            timestamp=batch.at,
            events=[CLEARED] if part is not None and part.index == 0 else [],
            dp_rank=RANK,
        )
        made.events.extend(map(self._event, batch.events))
        if part is not None:
            chunk = pb.KvSnapshotChunk(index=part.index, count=part.count, blocks=part.blocks)
            made.snapshot.CopyFrom(chunk)
        return made

    def _event(self, event: CacheEvent) -> pb.KvCacheEvent:
        if isinstance(event, BlocksRemoved):
            return pb.KvCacheEvent(removed=_removed(event))
        return pb.KvCacheEvent(stored=self._stored(event))

    def _stored(self, event: BlocksStored) -> pb.KvBlocksStored:
        tier, level, medium = TIERS[event.medium]
        adapter, size = event.adapter, len(event.tokens) // len(event.keys)
        number = None if adapter is None else self.adapters.index(adapter) + 1
        blocks = [
            pb.KvBlock(
                block_hash=_hash(key),
                token_ids=event.tokens[index * size : (index + 1) * size],
                block_size=size,
                lora_id=number,
                cache_level=level,
            )
            for index, key in enumerate(event.keys)
        ]
        return pb.KvBlocksStored(
            blocks=blocks,
            parent_block_hash=None if event.parent is None else _hash(event.parent),
            tier=tier,
            medium=medium,
            group_idx=GROUP,
            lora_name=adapter,
            cache_salt=event.salt or None,
        )


def _removed(event: BlocksRemoved) -> pb.KvBlocksRemoved:
    tier, level, medium = TIERS[event.medium]
    return pb.KvBlocksRemoved(
        block_hashes=map(_hash, event.keys),
        cache_level=level,
        tier=tier,
        medium=medium,
        group_idx=GROUP,
    )


def _hash(key: bytes) -> int:
    """The end of a key, as a number: SMG only compares them."""
    return int.from_bytes(key[-HASH_BYTES:], "big", signed=True)
