"""Heads that turn in part are normed whole, in the order that their weights are read in."""

import pytest
import torch

from engine.kernels.gpu.turn_and_write import HeadNorms, turn_and_write
from engine.models.rope import head_order, rope_table
from engine.models.rope_config import Rope


@pytest.mark.parametrize("interleaved", [False, True])
def test_heads_that_turn_in_part_are_normed_whole(
    interleaved: bool, device: torch.device
) -> None:
    """In the order of `head_order`, and then as if each pair were turned where it was."""
    rope = Rope(original_max_position_embeddings=64, rotary_dim=8, interleaved=interleaved)
    order, table = head_order(rope, 16), rope_table(rope, 16, 64)
    assert order is not None
    heads, positions = torch.randn(5, 3, 16), torch.tensor([9, 0, 63, 1, 30])
    weight, eps = torch.randn(16), 1e-3
    memory = torch.zeros(2, 1, 2, 3, 4, 16, device=device)
    rows, norm = heads[..., order].to(device), weight[order].to(device)
    places = positions.to(device, torch.int32), memory, 0, torch.arange(5, device=device)
    norms = HeadNorms(norm, norm, eps)
    turned = turn_and_write(rows, rows, rows, table.to(device), *places, norms)
    right = torch.nn.functional.rms_norm(heads, (16,), weight, eps)
    angles = positions[:, None] * rope.rope_theta ** (-torch.arange(4) / 4)
    pairs = torch.arange(8).view(4, 2) if interleaved else torch.arange(8).view(2, 4).T
    first, second = (right[..., pairs[:, one]] for one in (0, 1))
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    right[..., pairs[:, 0]] = first * cos - second * sin
    right[..., pairs[:, 1]] = second * cos + first * sin
    torch.testing.assert_close(turned.cpu(), right[..., order])
