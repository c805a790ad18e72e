"""What enters and leaves the prefix cache, for others who keep track of it. Torch-free."""

from enum import Enum

import msgspec


class Medium(Enum):
    """Where a block is: in KV memory, or in one of the tiers below it."""

    KV_MEMORY = "kv"
    HOST_MEMORY = "cpu"
    DISK = "disk"


class BlocksStored(msgspec.Struct, frozen=True, tag="stored"):
    """Consecutive blocks of one prompt are in the prefix cache, each under its key.

    `tokens` are those of all these blocks together. `parent` is the key of the block before
    the first of them; None: the prompt begins with it. `adapter` and `salt` are the request's;
    they are part of the keys.
    """

    keys: tuple[bytes, ...]
    parent: bytes | None
    tokens: tuple[int, ...]
    adapter: str | None = None
    salt: str = ""
    medium: Medium = Medium.KV_MEMORY


class BlocksRemoved(msgspec.Struct, frozen=True, tag="removed"):
    """Blocks were evicted from the prefix cache, or from a tier below it."""

    keys: tuple[bytes, ...]
    medium: Medium = Medium.KV_MEMORY


CacheEvent = BlocksStored | BlocksRemoved
