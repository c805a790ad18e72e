"""What is to be done with the bytes of blocks: copies at once, and work for the disk."""

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Copy:
    """Between a block of KV memory and a slot of host memory; `out`: from the block."""

    block: int
    slot: int
    out: bool


class Way(Enum):
    """From a slot to the disk, or back."""

    WRITE = auto()
    READ = auto()


@dataclass(frozen=True, slots=True)
class Job:
    """Move the bytes of `key` between a slot and a place on disk; nobody else uses the slot."""

    way: Way
    key: bytes
    slot: int
    place: int
