"""Data movements between tiers: copies to and from host memory, and jobs for the disk."""

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between a block of KV memory and a slot of host memory; `out`: from the block."""

    block: int
    slot: int
    out: bool


class DiskOperation(Enum):
    """WRITE: from a slot to the disk; READ: from the disk to a slot."""

    WRITE = auto()
    READ = auto()


@dataclass(frozen=True, slots=True)
class DiskJob:
    """Move the bytes of `key` between a slot and a place on disk; the job owns the slot."""

    operation: DiskOperation
    key: bytes
    slot: int
    place: int
