"""A kernel's floor: the bytes and operations that any version of it needs. Torch-free."""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["bfloat16", "float8"]


@dataclass(frozen=True, slots=True)
class Floor:
    """Bytes through the device's memory, and operations of the unit that does them.

    Every input is read once and every output written once; a multiplication with an addition
    is two operations. Operations in float16 and on integers count as bfloat16's.
    """

    bytes: int
    operations: int = 0
    unit: Unit = "bfloat16"
