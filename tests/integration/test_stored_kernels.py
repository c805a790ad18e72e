"""Compiled CPU kernels over KV in fp8: what is written is rounded once, and read as it is."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.rows import E4M3
from engine.kernels.stored import to_stored
from engine.kernels.style import AttentionStyle
from tests.integration.test_kernels import CHUNKS, SHAPES, SINGLES, STYLES

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CPU = torch.device("cpu")
EVERY = torch.arange(256, dtype=torch.uint8).view(E4M3)
NO_NUMBERS = (0x7F, 0xFF)


def bits_of(stored: Tensor) -> Tensor:
    return stored.view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_that_over_the_same_numbers(
    shape: str, dtype: torch.dtype, kernels: CpuKernels
) -> None:
    """Bit by bit: what is read is exact, and the rest is the same code."""
    kept, heads, size = SHAPES[shape]
    memories = list(alike(kept, size, dtype, kernels))
    rows = len(SINGLES) + sum(some for _, some in CHUNKS)
    queries = torch.randn(rows, heads, kept.width).to(dtype)
    for name, style in STYLES.items():
        if style.sinks is None or heads == len(style.sinks):
            eight, wide = (attend(one, style, queries) for one in memories)
            assert eight.equal(wide), name
            assert eight.isfinite().all()


def alike(
    kept: KvShape, size: int, dtype: torch.dtype, kernels: CpuKernels
) -> Iterator[KvMemory]:
    """Two memories with the same numbers, in fp8 and in the queries' type."""
    blocks = sum(-(-end // size) for end in (*SINGLES, *(end for end, _ in CHUNKS)))
    numbers = None
    for stored in (E4M3, None):
        memory = KvMemory(replace(kept, stored=stored), blocks, size, dtype, CPU, kernels)
        if numbers is None:
            numbers = to_stored(torch.randn(memory.block_rows.shape), E4M3)
        memory.block_rows.copy_(numbers.to(stored or dtype))
        yield memory


def attend(memory: KvMemory, style: AttentionStyle, queries: Tensor) -> Tensor:
    order = torch.randperm(memory.num_blocks, generator=torch.Generator().manual_seed(0))
    blocks = iter(order.tolist())

    def span(end: int, length: int) -> Span:
        some = itertools.islice(blocks, -(-end // memory.block_size))
        return Span(end - length, length, list(some))

    singles, chunks = [span(end, 1) for end in SINGLES], [span(*one) for one in CHUNKS]
    batch = AttentionBatch(memory, singles, chunks)
    return batch.attend(memory.shape.layers - 1, style, queries)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 4])  # by products of many queries, and by those of few
def test_every_number_is_read_exactly(
    dtype: torch.dtype, heads: int, kernels: CpuKernels
) -> None:
    """A sequence of one token has that token's value."""
    memory = KvMemory(KvShape(1, 1, 256, stored=E4M3), 1, 16, dtype, CPU, kernels)
    numbers = EVERY.clone()
    numbers[list(NO_NUMBERS)] = 0
    memory.blocks[0, 0, 1, 0, 0] = numbers
    queries = torch.zeros(1, heads, 256, dtype=dtype)
    batch = AttentionBatch(memory, [Span(0, 1, [0])], [])
    said = batch.attend(0, AttentionStyle(1.0), queries).view(heads, 256)
    assert all(row.equal(numbers.to(dtype)) for row in said)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("bits", NO_NUMBERS)
def test_what_is_no_number_stays_none(
    bits: int, part: int, dtype: torch.dtype, kernels: CpuKernels
) -> None:
    memory = KvMemory(KvShape(1, 1, 64, stored=E4M3), 1, 16, dtype, CPU, kernels)
    memory.bytes_of_blocks.view(2, 16, 64)[part, 1, 7] = bits
    batch = AttentionBatch(memory, [Span(2, 1, [0])], [])
    said = batch.attend(0, AttentionStyle(1.0), torch.ones(1, 1, 64, dtype=dtype))
    assert said.isnan().any()


def odd_numbers(dtype: torch.dtype) -> Tensor:
    """All numbers of fp8, what lies between two of them, what is beyond, and anything."""
    known = EVERY.float()
    known = known[known.isfinite()].sort().values
    between = (known[1:] + known[:-1]) / 2
    beside = torch.cat((between * (1 + 2**-7), between * (1 - 2**-7)))
    beyond = torch.tensor([449.0, 464.0, 480.0, 1e4, math.inf, 2**-11, 2**-30])
    drawn = torch.randn(3000) * torch.logspace(-4, 4, 3000)
    found = torch.cat((known, between, beside, beyond, -beyond, drawn)).to(dtype)
    return found[: len(found) // 24 * 24].view(-1, 1, 24)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writing_rounds_as_torch_does(dtype: torch.dtype, kernels: CpuKernels) -> None:
    rows = odd_numbers(dtype)
    memory = torch.zeros(len(rows) + 1, 24).to(E4M3)
    slots = torch.randperm(len(rows)) + 1
    kernels.write(memory, slots, rows)
    assert bits_of(memory[slots]).equal(bits_of(to_stored(rows[:, 0], E4M3)))
    assert not bits_of(memory[0]).any()
    kernels.write(memory, slots[:1], torch.full((1, 1, 24), math.nan, dtype=dtype))
    assert memory[slots[0]].float().isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_turned_keys_are_rounded_when_they_are_written(
    turned: bool, dtype: torch.dtype, kernels: CpuKernels
) -> None:
    tokens, heads, kv_heads, width = 5, 6, 2, 40
    mixed = torch.randn(tokens, heads + 2 * kv_heads, width).to(dtype)
    angles = torch.randn(2, tokens, 1, width).to(dtype) if turned else None
    slots = torch.randperm(2 * tokens * kv_heads).view(2, -1)
    made = []
    for stored in (dtype, E4M3):
        parts = mixed.clone().split((heads, kv_heads, kv_heads), 1)
        memory = torch.zeros(2 * tokens * kv_heads, width).to(stored)
        told = None if angles is None else (angles[0], angles[1])
        kernels.turn_and_write((parts[0], parts[1], parts[2]), told, memory, slots)
        made.append((parts[0], memory))
    (wide, exact), (eight, rounded) = made
    assert wide.equal(eight)
    assert bits_of(rounded).equal(bits_of(to_stored(exact, E4M3)))
