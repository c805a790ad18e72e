"""How products with weights are cut into tiles: rules over shapes alone."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.weights import BLOCK, Fp8Weight, Int4Weight, Weight

BAND = 8  # tiles of rows that are processed together
DEPTH = 128  # bytes of inputs for one step of the inner loop
FEW_ROWS, MOST_SPLITS, LEAST_STEPS = 64, 16, 4
LARGE, NARROW = 128, 64  # sides of tiles
WAVES = 2  # tiles that each multiprocessor should have
MULTIPROCESSORS = 132  # if there is no device to ask
FORMATS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float8_e4m3fn: tl.float8e4nv,
}


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a product is cut: rows and outputs of a tile, inputs of a step, parts of inputs."""

    rows: int
    outputs: int
    step: int
    splits: int
    warps: int
    stages: int


def choose_tiles(rows: int, weight: Weight, multiprocessors: int) -> Tiles:
    """Tiles chosen by hand-written rules from shapes alone; `rows` counts those of all experts.

    Up to FEW_ROWS, splits do not depend on the number of rows, so that results do not depend on
    what else is in the batch.
    """
    experts, outputs, _ = weight.shape
    each, steps = -(-rows // experts), -(-places_of(weight) // _step(weight))
    if each > FEW_ROWS:
        tiles = -(-rows // LARGE) * -(-outputs // LARGE)
        splits = _splits(multiprocessors // tiles, steps) if experts == 1 else 1
        return Tiles(LARGE, LARGE, _step(weight), splits, 8, 3)
    height = 16 if each <= 16 else 32 if each <= 32 else 64
    wanted = 1
    if experts == 1:
        wanted = -(-WAVES * multiprocessors // -(-outputs // NARROW))
    return Tiles(height, NARROW, _step(weight), _splits(wanted, steps), 4, 4)


def _splits(wanted: int, steps: int) -> int:
    """Into how many parts the inputs are split; no part is empty."""
    splits = max(1, min(wanted, steps // LEAST_STEPS, MOST_SPLITS))
    return -(-steps // -(-steps // splits))


def most_tiles(rows: int, experts: int, height: int) -> int:
    """The most tiles of `height` rows, each of one expert, for any choice of the router."""
    return rows // height + min(experts, rows)


def multiprocessors_of(device: torch.device) -> int:
    """Of the device; of an H100 if there is none."""
    if device.type != "cuda":
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def operand_dtype(rows: Tensor) -> tl.dtype:
    """The rows' dtype; float32 in Triton's interpreter, which multiplies bfloat16 as ints."""
    return tl.float32 if triton.knobs.runtime.interpret else FORMATS[rows.dtype]


def places_of(weight: Weight) -> int:
    """The length of a product's sums: inputs, and places without one."""
    return weight.places if isinstance(weight, Int4Weight) else weight.shape[2]


def _step(weight: Weight) -> int:
    if isinstance(weight, Int4Weight):
        return weight.group
    if isinstance(weight, Fp8Weight):
        return BLOCK
    return DEPTH // weight.values.element_size()
