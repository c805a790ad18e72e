"""How carefully KV is looked at on its way from one node to another. Torch-free."""

from enum import IntEnum
from typing import Self

LINE_BYTES = 64
STRIDE_BYTES = 1024


class CheckLevel(IntEnum):
    """Which bytes of a block its checksum is of; the more careful of two is the greater.

    SAMPLED looks at the first LINE_BYTES of every STRIDE_BYTES of a block: it finds what is
    wrong with a whole line, so any damage of at least STRIDE_BYTES in one stretch, a block
    that is another one, older, or was never written. FULL looks at every byte. What is looked
    at and differs is missed once in 2^64 times.
    """

    OFF = 0
    SAMPLED = 1
    FULL = 2

    @classmethod
    def named(cls, name: str) -> Self:
        """As settings have it: `off`, `sampled`, `full`."""
        return cls[name.upper()]


ExpectedChecksum = tuple[CheckLevel, int]
"""A block's checksum, and what it is of."""
