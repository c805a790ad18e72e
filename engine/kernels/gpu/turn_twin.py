"""The twin of engine/kernels/gpu/turn_and_write.py, in plain torch."""

import torch
from torch import Tensor

from engine.kernels.gpu.norms import rms_norm_twin
from engine.kernels.gpu.turn_and_write import HeadNorms
from engine.kernels.stored import to_stored


def turn_and_write_twin(
    queries: Tensor,
    keys: Tensor,
    values: Tensor | None,
    rope: Tensor | None,
    positions: Tensor,
    memory: Tensor,
    layer: int,
    slots: Tensor,
    norms: HeadNorms | None = None,
) -> Tensor:
    """See `turn_and_write`."""
    if norms is not None and norms.query is not None:
        queries = rms_norm_twin(queries, norms.query, norms.eps)
    if norms is not None:
        latent, rest = keys.tensor_split([len(norms.key)], 2)
        keys = torch.cat((rms_norm_twin(latent, norms.key, norms.eps), rest), 2)
    if rope is not None:
        table = rope[positions.long()].to(queries.dtype).unsqueeze(2)
        queries, keys = _turned(queries, table), _turned(keys, table)
    kept = slots >= 0
    block, offset = slots[kept] // memory.shape[4], slots[kept] % memory.shape[4]
    for part, rows in enumerate((keys,) if values is None else (keys, values)):
        memory[block, layer, part, :, offset] = to_stored(rows[kept], memory.dtype)
    return queries


def _turned(heads: Tensor, table: Tensor) -> Tensor:
    """Rotate [T, heads, width] by [T, 2, 1, rotated width]."""
    width = table.shape[-1]
    leading, last = heads.split((heads.shape[2] - width, width), 2)
    turned = last * table[:, 0] + last.roll(width // 2, -1) * table[:, 1]
    return torch.cat((leading, turned), 2)
