"""One prefill and one decode node's memory on the same device, and a hand-over between them.

Two processes, like two nodes; it begins with the offer and ends when the sink has all KV.
"""

from collections.abc import Iterator
from functools import partial

import torch

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from bench.gpu.work import handover_floor


def rows(shape: Shape) -> Iterator[Row]:
    """Rows for KV in the model's own dtype only."""
    if shape.quantization is not None:
        return
    for level in ("sampled", "off"):
        setting = f"{shape.handed_over} tokens, NIXL, checksums {level}"
        yield Row("hand-over 1P1D", setting, partial(_make, shape, level))


def _make(shape: Shape, level: str, device: torch.device) -> Prepared:
    from bench.gpu.handover import HandoverPair  # more than torch and triton

    blocks = -(-shape.handed_over // shape.block_size)
    pair = HandoverPair.open(device, blocks, shape.block_size * shape.kv_bytes, level)
    floor = handover_floor(shape, shape.handed_over)
    return Prepared(pair.hand_over, floor, pair.twin, waits=True, close=pair.close)
