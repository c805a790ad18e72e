"""The twins of the kernels of paged attention, beside plain torch's own way over blocks."""

import pytest
import torch
from torch import Tensor

from engine.attention.device_batch import DeviceBatch
from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.attention.rotation import Rotation
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.style import AttentionStyle
from engine.running.staging import BatchSize, Staging

HEADS, BLOCK, BLOCKS, LAYERS, LAYER = 4, 3, 40, 2, 1
STYLES = {
    "plain": AttentionStyle(0.3),
    "windowed": AttentionStyle(0.3, window=5),
    "capped": AttentionStyle(0.3, softcap=2.0),
    "sunk": AttentionStyle(0.3, window=4, sinks=torch.randn(HEADS)),
}
SHAPES = {
    "shared heads": KvShape(LAYERS, 2, 8),
    "latents": KvShape(LAYERS, 1, 10, parts=1, value_width=6),
}
SINGLES = [Span(0, 1, [3]), Span(13, 1, [9, 7, 8, 30, 2])]
CHUNKS = [Span(0, 7, [4, 6, 5]), Span(8, 4, [10, 12, 11, 13])]
ROWS = 13


def plan() -> Plan:
    return Plan(range(ROWS), SINGLES, CHUNKS, ())


def device_batch(memory: KvMemory, size: BatchSize) -> DeviceBatch:
    staging = Staging(size, BLOCK, torch.device("cpu"))
    longest = max(chunk.length for chunk in CHUNKS)
    return DeviceBatch(memory, TorchKernels(), staging.stage(size, plan()).metadata, 2, longest)


def memory_of(shape: KvShape) -> KvMemory:
    return KvMemory(shape, BLOCKS, BLOCK, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_attention(shape: KvShape, style: AttentionStyle) -> None:
    plain, poisoned = memory_of(shape), memory_of(shape)
    poisoned.block_rows.fill_(torch.nan)  # what nobody wrote must not be read
    seen = torch.zeros(BLOCKS, BLOCK, dtype=torch.bool)
    for span in (*SINGLES, *CHUNKS):
        for at in range(span.start + span.length):
            seen[span.blocks[at // BLOCK], at % BLOCK] = True
    fresh = torch.randn_like(plain.blocks)
    keep = seen[:, None, None, None, :, None]
    plain.blocks.copy_(torch.where(keep, fresh, 0.0))
    poisoned.blocks.copy_(torch.where(keep, fresh, torch.nan))
    queries = torch.randn(ROWS, HEADS, shape.width)
    theirs = AttentionBatch(plain, SINGLES, CHUNKS).attend(LAYER, style, queries)
    ours = device_batch(poisoned, BatchSize(ROWS, 4, 16)).attend(LAYER, style, queries)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("turned", [True, False])
def test_what_is_turned_and_written(turned: bool) -> None:
    shape = SHAPES["shared heads"]
    mixed = torch.randn(ROWS + 3, HEADS + 2 * shape.heads, shape.width)
    table = torch.randn(40, 2, shape.width)

    def parts(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = mixed[:rows].clone().split((HEADS, shape.heads, shape.heads), 1)
        return queries, keys, values

    plain, ours = memory_of(shape), memory_of(shape)
    theirs = AttentionBatch(plain, SINGLES, CHUNKS)
    batch = device_batch(ours, BatchSize(ROWS + 3, 7, 16))  # three rows stand for nothing
    rotations = [Rotation(table, one.positions) if turned else None for one in (theirs, batch)]
    expected = theirs.turn_and_write(LAYER, parts(ROWS), rotations[0])
    got = batch.turn_and_write(LAYER, parts(ROWS + 3), rotations[1])
    torch.testing.assert_close(got[:ROWS], expected)
    torch.testing.assert_close(ours.blocks, plain.blocks)
    assert plain.blocks.any()


def test_rows_behind_the_last_chunk_answer_zero() -> None:
    """Whether or not a sequence of no length is there for them."""
    memory = memory_of(SHAPES["shared heads"])
    memory.block_rows.fill_(torch.nan)
    staging = Staging(BatchSize(9, 3, 16), BLOCK, torch.device("cpu"))
    for sequences, singles in ((1, 0), (2, 1), (3, 1)):
        size = BatchSize(9, sequences, 16)
        places = staging.clear(size).metadata
        batch = DeviceBatch(memory, TorchKernels(), places, singles, 9)
        answer = batch.attend(LAYER, STYLES["plain"], torch.randn(9, HEADS, 8))
        assert torch.equal(answer, torch.zeros(9, HEADS * 8))


def test_a_row_that_stands_for_nothing_reads_nothing_and_answers_zero() -> None:
    memory = memory_of(SHAPES["shared heads"])
    memory.block_rows.fill_(torch.nan)
    staging = Staging(BatchSize(2, 2, 16), BLOCK, torch.device("cpu"))
    batch = DeviceBatch(memory, TorchKernels(), staging.clear(BatchSize(2, 2, 16)).metadata, 2)
    answer = batch.attend(LAYER, STYLES["plain"], torch.randn(2, HEADS, 8))
    assert torch.equal(answer, torch.zeros(2, HEADS * 8))
