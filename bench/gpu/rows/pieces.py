"""What a hand-over does on a device beside its reads: pieces to their places, checksums."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from engine.kernels.floor import Floor
from kv_transfer.gpu import moving, sums

LINE_BYTES, STRIDE_BYTES = 64, 1024
FEWEST_LINES = 4  # else they are summed on the host


def rows(shape: Shape) -> Iterator[Row]:
    """Rows for the KV of a hand-over, in the model's own dtype only."""
    if shape.quantization is not None:
        return
    tokens = f"{shape.handed_over} tokens"
    yield Row("pieces of blocks", f"{tokens}, blocks half as large", partial(_pieces, shape))
    for name, step in ("sampled", STRIDE_BYTES), ("full", LINE_BYTES):
        if shape.block_size * shape.kv_bytes < FEWEST_LINES * step:
            continue
        yield Row("checksums of blocks", f"{tokens}, {name}", partial(_sums, shape, step))


def _blocks(shape: Shape, device: torch.device) -> Tensor:
    """[blocks, planes and heads, 2, bytes of half a block's tokens]."""
    count = -(-shape.handed_over // shape.block_size)
    heads = 2 * shape.num_hidden_layers * shape.num_key_value_heads
    half = shape.block_size * shape.kv_bytes // heads // 2
    size = count, heads, 2, half
    return torch.randint(0, 256, size, dtype=torch.uint8, device=device)


def _pieces(shape: Shape, device: torch.device) -> Prepared:
    """Copy pieces, as they come from a source, to blocks of half as many tokens."""
    source = _blocks(shape, device)
    count, heads, _, half = source.shape
    target = torch.zeros(count, 2, heads, half, dtype=torch.uint8, device=device)
    block, head, part = np.indices((count, heads, 2), dtype=np.int64)
    there = source.data_ptr() + ((block * heads + head) * 2 + part) * half
    here = target.data_ptr() + ((block * 2 + part) * heads + head) * half
    sizes = np.full(there.size, half)

    def run() -> Tensor:
        moving.move(there.ravel(), here.ravel(), sizes, device)
        return target

    def by_torch() -> Tensor:
        return source.transpose(1, 2).contiguous()

    floor = Floor(bytes=moving.bytes_moved(source.numel()))
    return Prepared(run, floor, by_torch, {"torch": lambda: by_torch})


def _sums(shape: Shape, step: int, device: torch.device) -> Prepared:
    """Checksums of all blocks at once; torch has no XXH3 to compare with."""
    memory = _blocks(shape, device).flatten(1)
    count, size = memory.shape
    lines = size // step
    run = partial(sums.launched, memory, range(count), lines, step)
    return Prepared(run, Floor(sums.bytes_moved(count, lines), sums.operations(count, lines)))
