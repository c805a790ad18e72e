"""How thoroughly KV is checked on its way from one node to another. Torch-free."""

from enum import IntEnum
from typing import Self

LINE_BYTES = 64
STRIDE_BYTES = 1024


class CheckLevel(IntEnum):
    """Which bytes of a block its checksum covers; the greater level is the more thorough.

    SAMPLED covers the first LINE_BYTES of every STRIDE_BYTES of a block. It detects damage that
    includes a whole line: any contiguous damage of at least STRIDE_BYTES, and a block that is
    the wrong one, outdated, or was never written. FULL covers every byte. A difference in the
    covered bytes is missed with probability 2^-64.
    """

    OFF = 0
    SAMPLED = 1
    FULL = 2

    @classmethod
    def named(cls, name: str) -> Self:
        """The level that a setting names: `off`, `sampled`, `full`."""
        return cls[name.upper()]


ExpectedChecksum = tuple[CheckLevel, int]
"""A block's checksum, and the level that says which bytes it covers."""
