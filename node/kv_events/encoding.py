"""Cache events in vLLM's wire format.

A batch is `[seconds since 1970, events, rank]`. Subscribers take block hashes for opaque bytes
and, in a cluster, for equal where the blocks' tokens and all before them are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.cache_events import BlocksRemoved, BlocksStored, CacheEvent, Medium

MEDIA = {Medium.KV_MEMORY: "GPU", Medium.HOST_MEMORY: "CPU", Medium.DISK: "STORAGE"}
"""vLLM's names; KV memory's is the same on a CPU."""
RANK, GROUP = 0, 0
EXTRA_KEYS = "extra_keys"
NOTHING_EXTRA = (EXTRA_KEYS, None)
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class EventEncoder:
    """`adapters` are the names of the node's adapters, whose ids are counted from 1."""

    block_size: int
    adapters: Sequence[str] = ()
    as_arrays: bool = False

    def encode(self, at: float, events: Sequence[CacheEvent]) -> bytes:
        """One batch, which happened `at` that time."""
        return _encoder.encode([at, [self._written(one) for one in events], RANK])

    def _written(self, event: CacheEvent) -> object:
        fields = self._stored(event) if isinstance(event, BlocksStored) else _removed(event)
        if self.as_arrays:
            return list(fields.values())
        return {name: value for name, value in fields.items() if (name, value) != NOTHING_EXTRA}

    def _stored(self, event: BlocksStored) -> dict[str, object]:
        """The fields in the order of an array."""
        adapter = event.adapter
        return {
            "type": "BlockStored",
            "block_hashes": event.keys,
            "parent_block_hash": event.parent,
            "token_ids": event.tokens,
            "block_size": self.block_size,
            "lora_id": None if adapter is None else self.adapters.index(adapter) + 1,
            "medium": MEDIA[event.medium],
            "lora_name": adapter,
            EXTRA_KEYS: _extra_keys(event),
            "group_idx": GROUP,
        }


def _removed(event: BlocksRemoved) -> dict[str, object]:
    return {
        "type": "BlockRemoved",
        "block_hashes": event.keys,
        "medium": MEDIA[event.medium],
        "group_idx": GROUP,
    }


def _extra_keys(event: BlocksStored) -> list[list[str] | None] | None:
    """What each hash is made of beside tokens: the adapter; in a first block, the salt."""
    each = [] if event.adapter is None else [event.adapter]
    salt = [event.salt] if event.salt and event.parent is None else []
    if not each and not salt:
        return None
    return [(each + (salt if index == 0 else [])) or None for index in range(len(event.keys))]
