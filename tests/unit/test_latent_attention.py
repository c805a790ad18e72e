"""Attending to latents is attending to the keys and values that could be made of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.attention import device_batch as device_batches
from engine.attention import latents
from engine.attention.batch import Batch
from engine.attention.device_batch import DeviceBatch
from engine.attention.host_batch import LEAST_EXPANDED, AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.latents import LatentPart, LatentSizes
from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.attention.rotation import Rotation
from engine.checkpoints.linear import PlainLinear
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.style import AttentionStyle
from engine.models.latent_attention import LatentAttention, LatentQuery
from engine.models.latent_heads import LatentHeads
from engine.models.norm import Norm
from engine.models.rope import Rotations
from engine.running.staging import BatchSize, Staging

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
        LatentHeads(
            numbers(HEADS, PLAIN, RANK, seed=5), numbers(HEADS, RANK, VALUE, seed=6), TURNED
        ),
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
        keys.append([torch.cat((one.heads.keys[head] @ latent, key)) for head in range(HEADS)])
        values.append([latent @ one.heads.values[head] for head in range(HEADS)])
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


def memory_of(dtype: torch.dtype = torch.float64, blocks: int = BLOCKS) -> KvMemory:
    shape = KvShape(LAYERS, 1, RANK + TURNED, parts=1, value_width=RANK)
    return KvMemory(shape, blocks, BLOCK, dtype, torch.device("cpu"))


@pytest.mark.parametrize("through_latent", [True, False])
@pytest.mark.parametrize("chunks", [[90], [1] * 20, [3, 70, 1, 1, 9]])
def test_latents_are_as_good_as_keys_and_values(
    through_latent: bool, chunks: list[int]
) -> None:
    one, hidden = attention(through_latent=through_latent), numbers(sum(chunks), HIDDEN)
    memory, outputs, start = memory_of(), list[Tensor](), 0
    for length in chunks:
        span = Span(start, length, range(BLOCKS - 1, -1, -1))
        batch = AttentionBatch(
            memory, [span] if length == 1 else [], [span] if length > 1 else []
        )
        assert bool(batch.latent_parts(one.heads.sizes)) is (length > LEAST_EXPANDED)
        part = hidden[start : start + length]
        outputs.append(one(part, rotations(batch.positions), batch))
        start += length
    expected = with_keys_and_values(one, hidden)
    torch.testing.assert_close(torch.cat(outputs), expected, rtol=1e-10, atol=1e-10)


MIXES = {
    "singles, then a long chunk": ([5, 0], [(0, 40)]),
    "a long chunk alone": ([], [(3, 37)]),
    "short and long ones in turns": ([9], [(2, 3), (4, 41), (0, 33), (1, 2), (0, 5), (8, 36)]),
    "short ones behind": ([], [(0, 35), (7, 4)]),
}


def device_batch(memory: KvMemory, singles: list[Span], chunks: list[Span]) -> Batch:
    spans = [*singles, *chunks]
    tokens = sum(span.length for span in spans)
    staging = Staging(BatchSize(tokens, len(spans), 16), BLOCK, torch.device("cpu"))
    fields = staging.stage(staging.most, Plan([0] * tokens, singles, chunks, ()))
    longest = max(span.length for span in chunks)
    kernels = TorchKernels()
    return DeviceBatch(memory, kernels, fields.metadata, len(singles), longest, chunks)


@pytest.mark.parametrize("workspace", [1, 1 << 20], ids=["head by head", "all heads"])
@pytest.mark.parametrize("build", [AttentionBatch, device_batch], ids=["host", "device"])
@pytest.mark.parametrize("mix", MIXES)
def test_whoever_is_in_a_batch_attends_as_alone(
    mix: str,
    build: Callable[[KvMemory, list[Span], list[Span]], Batch],
    workspace: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each in the way that is cheaper for it, whatever is beside it."""
    monkeypatch.setattr(latents, "WORKSPACE_BYTES", workspace)
    monkeypatch.setattr(device_batches, "LEAST_EXPANDED", LEAST_EXPANDED)
    one, (starts, chunks) = attention(through_latent=True), MIXES[mix]
    order = iter(torch.randperm(200, generator=torch.Generator().manual_seed(3)).tolist())
    memory = memory_of(blocks=200)
    memory.block_rows.normal_(generator=torch.Generator().manual_seed(4))

    def span(start: int, length: int) -> Span:
        return Span(start, length, [next(order) for _ in range(-(-(start + length) // BLOCK))])

    alone = [span(start, 1) for start in starts]
    others = [span(*chunk) for chunk in chunks]
    batch = build(memory, alone, others)
    hidden = numbers(len(batch.positions), HIDDEN)
    got = one(hidden, rotations(batch.positions), batch)
    parts = batch.latent_parts(one.heads.sizes)
    expanded = [part.rows.stop - part.rows.start for part in parts if part.expanded]
    assert expanded == [length for _, length in chunks if length >= LEAST_EXPANDED]
    first = 0
    for some in [*alone, *others]:
        apart = Plain(memory, [some] if some in alone else [], [some] if some in others else [])
        rows = hidden[first : first + some.length]
        right = one(rows, rotations(apart.positions), apart)
        ours = got[first : first + some.length]
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)  # twins are float32
        first += some.length


class Plain(AttentionBatch):
    """Attends to latents only."""

    def latent_parts(self, sizes: LatentSizes) -> Sequence[LatentPart]:
        return ()


V3 = LatentSizes(rank=512, rope=64, plain=128, value=128)  # DeepSeek's


@pytest.mark.parametrize(
    ("start", "length", "expanded"),
    [
        (0, 1, True),
        (0, 8192, True),
        (8000, 64, False),
        (8000, 256, False),
        (8000, 384, True),
        (128000, 256, False),
        (128000, 384, True),
    ],
)
def test_what_takes_fewer_operations_is_done(start: int, length: int, expanded: bool) -> None:
    """Each token that is cached costs as much as 341 queries save of it."""
    assert V3.cheaper_expanded(Span(start, length, ())) is expanded


def test_values_wider_than_keys_are_not_made() -> None:
    assert not replace(V3, value=193).cheaper_expanded(Span(0, 8192, ()))


def test_as_many_heads_as_there_is_room_for() -> None:
    assert V3.heads_at_once(128, 1024, 2) == 128
    assert V3.heads_at_once(128, 1 << 17, 2) == 2
    assert V3.heads_at_once(128, 1 << 22, 2) == 1


@pytest.mark.parametrize("most", [1, 1024, 100_000, 1 << 17, 1 << 20])
def test_no_context_takes_more_than_is_counted_for_the_longest(most: int) -> None:
    """Also one that ends just before a head more has no room."""

    def taken(tokens: int) -> int:
        made = 2 * V3.heads_at_once(128, tokens, 2) * V3.key
        return (V3.rank + V3.rope + made) * tokens * 2

    counted = V3.workspace_bytes(128, most, 2)
    assert all(taken(tokens) <= counted for tokens in range(1, most + 1, 97))
    assert counted < 2 * max(taken(most), latents.WORKSPACE_BYTES)


def test_one_row_per_token_and_layer_is_kept() -> None:
    memory = memory_of(torch.float32)
    (region,) = memory.regions
    assert region.block_bytes == LAYERS * BLOCK * (RANK + TURNED) * 4
    assert memory.block_rows.numel() * 4 == BLOCKS * region.block_bytes
