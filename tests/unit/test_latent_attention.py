"""Attending to latents is attending to the keys and values that could be made of them."""

import pytest
import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import AttentionBatch, Span
from engine.attention.rotation import Rotation
from engine.checkpoints.linear import PlainLinear
from engine.kernels.style import AttentionStyle
from engine.models.latent_attention import LatentAttention, LatentQuery
from engine.models.norm import Norm
from engine.models.rope import Rotations

HIDDEN, HEADS, PLAIN, TURNED, RANK, VALUE, QUERY_RANK = 10, 3, 6, 4, 7, 5, 8
LAYERS, LAYER, BLOCK, BLOCKS = 2, 1, 4, 30
SCALE = 0.37


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def attention(*, through_latent: bool) -> LatentAttention:
    asked = QUERY_RANK if through_latent else HEADS * (PLAIN + TURNED)
    up = PlainLinear(numbers(HEADS * (PLAIN + TURNED), QUERY_RANK, seed=1))
    return LatentAttention(
        LAYER,
        PlainLinear(numbers(asked + RANK + TURNED, HIDDEN, seed=2)),
        LatentQuery(Norm(numbers(QUERY_RANK, seed=3), 1e-6), up) if through_latent else None,
        Norm(numbers(RANK, seed=4), 1e-6),
        numbers(HEADS, PLAIN, RANK, seed=5),
        numbers(HEADS, RANK, VALUE, seed=6),
        PlainLinear(numbers(HIDDEN, HEADS * VALUE, seed=7)),
        AttentionStyle(SCALE),
    )


def angles(positions: Tensor) -> Tensor:
    """[tokens, TURNED / 2]."""
    return positions[:, None].double() * torch.tensor([1.0, 0.1], dtype=torch.float64)


def rotations(positions: Tensor) -> Rotations:
    every = angles(torch.arange(int(positions.max()) + 1))
    cos, sin = every.cos(), every.sin()
    table = torch.stack((torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)), 1)
    return [Rotation(table, positions)]


def turn(pair_halves: Tensor, angle: Tensor) -> Tensor:
    """[TURNED] by [TURNED / 2], as complex numbers."""
    first, second = pair_halves.chunk(2)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag))


def rms(vector: Tensor, weight: Tensor) -> Tensor:
    return vector / (vector.square().mean() + 1e-6).sqrt() * weight


def with_keys_and_values(one: LatentAttention, hidden: Tensor) -> Tensor:
    """Token by token and head by head, every key and value made; [tokens, hidden]."""
    assert isinstance(one.inward, PlainLinear)
    assert isinstance(one.output, PlainLinear)
    angle = angles(torch.arange(len(hidden)))
    keys, values, outputs = list[list[Tensor]](), list[list[Tensor]](), list[Tensor]()
    for at, token in enumerate(hidden):
        mixed = one.inward.weight @ token
        asked, latent, key = (
            mixed[: -RANK - TURNED],
            mixed[-RANK - TURNED : -TURNED],
            mixed[-TURNED:],
        )
        if one.query is not None:
            assert isinstance(one.query.up, PlainLinear)
            asked = one.query.up.weight @ rms(asked, one.query.norm.weight)
        latent, key = rms(latent, one.latent_norm.weight), turn(key, angle[at])
        keys.append([torch.cat((one.keys[head] @ latent, key)) for head in range(HEADS)])
        values.append([latent @ one.values[head] for head in range(HEADS)])
        read = list[Tensor]()
        for head, query in enumerate(asked.view(HEADS, -1)):
            turned = torch.cat((query[:PLAIN], turn(query[PLAIN:], angle[at])))
            scores = torch.stack([turned @ ours[head] for ours in keys]) * SCALE
            weights = scores.exp() / scores.exp().sum()
            read.append(
                sum(
                    (w * ours[head] for w, ours in zip(weights, values, strict=True)),
                    torch.zeros(VALUE, dtype=torch.float64),
                )
            )
        outputs.append(one.output.weight @ torch.cat(read))
    return torch.stack(outputs)


@pytest.mark.parametrize("through_latent", [True, False])
@pytest.mark.parametrize("chunks", [[90], [1] * 20, [3, 70, 1, 1, 9]])
def test_latents_are_as_good_as_keys_and_values(
    through_latent: bool, chunks: list[int]
) -> None:
    one, hidden = attention(through_latent=through_latent), numbers(sum(chunks), HIDDEN)
    shape = KvShape(LAYERS, 1, RANK + TURNED, parts=1, value_width=RANK)
    memory = KvMemory(shape, BLOCKS, BLOCK, torch.float64, torch.device("cpu"))
    outputs, start = list[Tensor](), 0
    for length in chunks:
        span = Span(start, length, range(BLOCKS - 1, -1, -1))
        batch = AttentionBatch(
            memory, [span] if length == 1 else [], [span] if length > 1 else []
        )
        part = hidden[start : start + length]
        outputs.append(one(part, rotations(batch.positions), batch))
        start += length
    expected = with_keys_and_values(one, hidden)
    torch.testing.assert_close(torch.cat(outputs), expected, rtol=1e-10, atol=1e-10)


def test_one_row_per_token_and_layer_is_kept() -> None:
    shape = KvShape(LAYERS, 1, RANK + TURNED, parts=1, value_width=RANK)
    memory = KvMemory(shape, BLOCKS, BLOCK, torch.float32, torch.device("cpu"))
    (region,) = memory.regions
    assert region.block_bytes == LAYERS * BLOCK * (RANK + TURNED) * 4
    assert memory.block_rows.numel() * 4 == BLOCKS * region.block_bytes
