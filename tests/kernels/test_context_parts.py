"""Parts of a row are added up, whatever lies where none was stored."""

import math

import pytest
import torch

from engine.kernels.gpu.context_parts import PARTS_AT_ONCE, add_parts, room_for_parts
from engine.kernels.gpu.paged_call import Heads

SPLITS, WIDTH = PARTS_AT_ONCE + 6, 20
HEADS = Heads(heads=2, kv_heads=2, width=WIDTH, value_width=WIDTH, parts=2, itemsize=4)


@pytest.mark.parametrize("rubbish", [math.inf, -math.inf, math.nan, 3e38])
@pytest.mark.parametrize("sinks", [None, (0.5, -1.0)])
def test_what_was_not_stored_is_not_looked_at(
    rubbish: float, sinks: tuple[float, ...] | None, device: torch.device
) -> None:
    counts = torch.tensor([[1, 3], [SPLITS - 1, SPLITS]], dtype=torch.int32)
    output = torch.full((2, HEADS.heads * WIDTH), math.nan, device=device)
    parts = room_for_parts(SPLITS, 2, HEADS, output)
    parts.mixed.fill_(rubbish)
    parts.sums.fill_(rubbish)
    parts.counts.copy_(counts)
    own = None if sinks is None else torch.tensor(sinks, device=device)
    exact = torch.empty(2, HEADS.heads, WIDTH, dtype=torch.float64)
    for row in range(2):
        for head in range(HEADS.heads):
            used = int(counts[row, head])
            mixed, tops = torch.randn(used, WIDTH), torch.randn(used)
            totals = torch.rand(used) + 0.5
            parts.mixed[row, head, :used] = mixed.to(device)
            parts.sums[0, row, head, :used] = tops.to(device)
            parts.sums[1, row, head, :used] = totals.to(device)
            factors = tops.double().exp2()
            total = (factors * totals).sum()
            if sinks is not None:
                total += math.exp(sinks[head])
            exact[row, head] = (factors[:, None] * mixed).sum(0) / total
    add_parts(parts, HEADS, own, output)
    torch.testing.assert_close(output.cpu().double(), exact.flatten(1), rtol=1e-5, atol=1e-5)
