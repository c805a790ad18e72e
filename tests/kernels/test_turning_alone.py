"""Queries whose keys are another layer's are normed and turned as those beside keys."""

import pytest
import torch

from engine.attention.rotation import Rotation
from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.twins import TorchKernels
from engine.models.norm import Norm
from engine.models.rope import rope_table
from engine.models.rope_config import Rope
from tests.kernels.attention_cases import FLOATS, distance

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TOKENS, POSITIONS = 5, 40


@pytest.mark.parametrize("kernels", [TorchKernels(), TritonKernels()])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("heads", "width"), [(8, 32), (5, 24), (2, 512)])
def test_queries_alone(
    heads: int,
    width: int,
    dtype: torch.dtype,
    turned: bool,
    normed: bool,
    kernels: TorchKernels,
    device: torch.device,
) -> None:
    """Views of a product with gaps between tokens."""
    product = torch.randn(TOKENS, heads * width + 7, device=device).to(dtype)
    queries = product[:, : heads * width].view(TOKENS, heads, width)
    rope = Rope(original_max_position_embeddings=POSITIONS, rotary_dim=width)
    table = rope_table(rope, width, POSITIONS).to(device, dtype)
    positions = torch.randint(0, POSITIONS, (TOKENS,), device=device)
    weight = torch.randn(width, device=device).to(dtype)
    norm = Norm(weight, 1e-6) if normed else None
    expected = queries.double()
    if normed:
        size = expected.square().mean(2, keepdim=True) + 1e-6
        expected = expected / size.sqrt() * weight.double()
    if turned:
        expected = Rotation(table.double(), positions).turn(expected)
    angles = (table, positions) if turned else None
    answer = kernels.turn(queries, angles, norm)
    assert distance(answer, expected.cpu()) < TOLERANCE[dtype]
