"""What a batch on a device asks of Triton's kernels is what it gets of their twins."""

from dataclasses import replace

import pytest
import torch

from engine.attention.device_batch import DeviceBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.attention.rotation import Rotation
from engine.kernels.contract import Latents
from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.style import AttentionStyle
from engine.models.norm import Norm
from engine.running.staging import BatchSize, Staging

HEADS, BLOCK, BLOCKS, LAYERS, LAYER, LONGEST = 4, 4, 40, 2, 1, 7
SINGLES = [Span(0, 1, [3]), Span(13, 1, [9, 7, 8, 30])]
CHUNKS = [Span(0, LONGEST, [4, 6]), Span(8, 4, [10, 12, 11])]
ROWS = 13
STYLE = AttentionStyle(0.3, window=9, softcap=3.0)
SHAPES = {
    "shared heads": KvShape(LAYERS, 2, 16),
    "latents": KvShape(LAYERS, 1, 20, parts=1, value_width=16),
}


def batch(memory: KvMemory, kernels: TorchKernels, device: torch.device) -> DeviceBatch:
    size = BatchSize(tokens=ROWS, sequences=4, blocks=6)
    fields = Staging(size, BLOCK, device).stage(size, Plan(range(ROWS), SINGLES, CHUNKS, ()))
    return DeviceBatch(memory, kernels, fields.metadata, 2, LONGEST)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_layer_of_a_mixed_batch(shape: KvShape, normed: bool, device: torch.device) -> None:
    before = torch.randn(BLOCKS, LAYERS, shape.parts, shape.heads, BLOCK, shape.width)
    style, answers = replace(STYLE, sinks=torch.randn(HEADS, device=device)), []
    rows = torch.randn(ROWS, HEADS + 2 * shape.heads, shape.width, device=device)
    rank = shape.value_width or 0
    table = torch.randn(64, 2, shape.width - rank, device=device)
    norm = Norm(torch.randn(rank or shape.width, device=device), 1e-3)
    for kernels in (TorchKernels(), TritonKernels()):
        memory = KvMemory(shape, BLOCKS, BLOCK, torch.float32, device)
        memory.blocks.copy_(before)
        ours = batch(memory, kernels, device)
        rotation = Rotation(table, ours.positions)
        queries, keys, values = rows.split((HEADS, shape.heads, shape.heads), 1)
        if rank and normed:
            turned = queries.clone()
            latents = Latents(keys, norm, queries[..., rank:], turned[..., rank:])
            ours.turn_and_write_latents(LAYER, latents, rotation)
            queries = turned
        elif rank:
            ours.write(LAYER, keys)
        else:
            norms = (norm, norm) if normed else None
            queries = ours.turn_and_write(LAYER, (queries, keys, values), rotation, norms)
        answers.append((ours.attend(LAYER, style, queries.contiguous()), memory.blocks))
    (right, kept), (answer, written) = answers
    torch.testing.assert_close(answer, right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(written, kept, rtol=1e-5, atol=1e-5)
