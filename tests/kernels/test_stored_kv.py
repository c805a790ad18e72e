"""Kernels over KV memory in fp8: each number is rounded once, and read as what it is then."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory, KvShape
from engine.kernels.contract import AttentionIo, Chunks, Contexts, LayerKv
from engine.kernels.gpu.attention_floors import decode_floor, turn_floor
from engine.kernels.gpu.attention_plans import DecodePlan
from engine.kernels.gpu.decode_attention import decode_attention
from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.paged_call import Heads
from engine.kernels.gpu.turn_and_write import HeadNorms, turn_and_write, write
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.rows import E4M3
from engine.kernels.stored import to_stored
from tests.kernels import test_turn_and_write as turning
from tests.kernels.ahead import compiled
from tests.kernels.attention_cases import (
    FLOATS,
    LAYER,
    PLAIN,
    Case,
    Shape,
    attend_chunks,
    make_case,
    on_its_device,
    styles_with,
)
from tests.kernels.test_attention_ahead import DECODE, LATENT_SHARD, LLAMA, NARROW, PREFILL

SHAPES = {
    "shared": Shape(6, 2, 32, 4),
    "width 80": Shape(3, 1, 80, 2),
    "latent": Shape(20, 1, 36, 4, parts=1, value_width=32),
    "short values": Shape(4, 2, 32, 4, value_width=20),
}
STYLES = {"plain": PLAIN, **styles_with(19)}
PLAN = DecodePlan(rows=16, tile=16, splits=3, warps=4, stages=2)
TIES = [17.0, 19.0, 0.0146484375, 2**-10, 3 * 2**-10, 2**-9]
ODD = [*TIES, 0.0, -0.0, 448.0, 464.0, 480.0, 1e6, -1e6, math.inf, -math.inf]


def stored(case: Case) -> tuple[Case, Case]:
    """With memory in fp8, and the same numbers in the type of the queries."""
    eight = case.memory.to(E4M3)
    return replace(case, memory=eight), replace(case, memory=eight.to(case.queries.dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_decode_reads_what_is_stored(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    made = []
    for case in stored(make_case(SHAPES[name], (5, 67, 0, 1), dtype, device)):
        contexts, width = (case.tables, case.lengths), case.shape.value_width
        given = case.queries, case.memory, LAYER, *contexts, PLAIN, width
        made.append(decode_attention(*given, plan=PLAN))
    assert made[0].equal(made[1])
    assert made[0].isfinite().all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_prefill_reads_what_is_stored(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    case = make_case(SHAPES[name], (25, 67), dtype, device, counts=(9, 20))
    eight, wide = (attend_chunks(one, PLAIN, None) for one in stored(case))
    assert eight.equal(wide)
    assert eight.isfinite().all()


@pytest.mark.parametrize("name", ["plain", "window", "softcap", "sinks", "all of it"])
def test_the_twins_read_the_same(name: str, device: torch.device) -> None:
    style, shape = STYLES[name], Shape(6, 2, 16, 4)
    whole = make_case(shape, (25, 67), torch.float32, device, counts=(9, 20))
    case, _ = stored(whole)
    kv, longest = LayerKv(case.memory, LAYER), int(case.firsts.diff().max())
    chunks, contexts = Chunks(case.firsts, longest), Contexts(case.tables, case.lengths)
    made = [torch.empty(len(case.queries), 6 * 16, device=device) for _ in range(2)]
    for kernels, output in zip((TritonKernels(), TorchKernels()), made, strict=True):
        io = AttentionIo(case.queries, output)
        kernels.prefill_attention(io, kv, contexts, chunks, on_its_device(style, case))
    torch.testing.assert_close(*made)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", turning.SHAPES)
def test_what_is_written_is_rounded_once(
    name: str, dtype: torch.dtype, normed: bool, device: torch.device
) -> None:
    """From float32, in which all is computed."""
    case = turning.make_case(turning.SHAPES[name], 7, dtype, device)
    query, key = (torch.randn(row.shape[2], device=device) for row in (case.queries, case.keys))
    norms = HeadNorms(query, key, 1e-3) if normed else None
    exact, eight = case.memory.float(), case.memory.to(E4M3)
    for memory in (exact, eight):
        given = case.queries, case.keys, case.values, case.rope, case.positions
        turn_and_write(*given, memory, turning.LAYER, case.slots, norms)
    assert same_bits(eight, to_stored(exact, E4M3))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_at_the_ends_of_the_range(dtype: torch.dtype, device: torch.device) -> None:
    rows = torch.tensor(ODD, device=device).to(dtype).view(1, 1, -1)
    memory = torch.zeros(1, 1, 2, 1, 1, len(ODD), device=device).to(E4M3)
    write((rows, -rows), memory, 0, torch.tensor([0], device=device))
    wanted = to_stored(torch.cat((rows, -rows)), E4M3)
    assert same_bits(memory.view(2, -1), wanted.view(2, -1))
    finite = memory.float().flatten()[[9, 10, 11, 12, 13, 14]]
    assert finite.tolist() == [448.0, 448.0, 448.0, -448.0, 448.0, -448.0]


def test_the_twin_writes_the_same_and_padding_nothing(device: torch.device) -> None:
    rows = torch.randn(5, 2, 8, device=device)
    slots = torch.tensor([3, -1, 6, -1, 0], device=device)
    made = []
    for kernels in (TritonKernels(), TorchKernels()):
        memory = torch.full((2, 2, 2, 2, 4, 8), -300.0, device=device).to(E4M3)
        kernels.write((rows, 3 * rows), LayerKv(memory, 1), slots)
        made.append(memory)
    assert same_bits(*made)
    assert int((made[0].float() == -288).sum()) == made[0].numel() - 3 * 2 * 2 * 8


def test_blocks_are_cleared(device: torch.device) -> None:
    memory = KvMemory(KvShape(2, 2, 16, stored=E4M3), 5, 4, torch.bfloat16, device)
    memory.bytes_of_blocks.fill_(0x7F)
    memory.clear([1, 3])
    memory.clear_behind(2, 3)
    assert memory.regions[0].block_bytes == memory.shape.token_bytes(torch.bfloat16) * 4
    kept = memory.blocks.float().isnan()
    assert not kept[[1, 3]].any()
    assert kept[[0, 4]].all()
    assert kept[2, ..., :3, :].all()
    assert not kept[2, ..., 3:, :].any()


def test_floors_count_stored_bytes() -> None:
    heads = Heads(32, 8, 128, 128, 2, 2, 1)
    assert decode_floor(heads, [1000]).bytes == 1000 * 8 * 256 + 32 * 256 * 2
    queries, keys = torch.empty(4, 8, 16).half(), torch.empty(4, 2, 16).half()
    wide, eight = (turn_floor(queries, keys, keys, None, size).bytes for size in (None, 1))
    assert wide - eight == 2 * keys.numel()


@pytest.mark.parametrize("module", ["decode_attention", "prefill_attention"])
def test_they_compile_without_spills(module: str) -> None:
    """Of latents with few heads in decode; with all 128, and in prefill, registers spill."""
    call = DECODE if module == "decode_attention" else PREFILL
    shapes = [LLAMA, NARROW, *([LATENT_SHARD] if call is DECODE else [])]
    eight = call.replace("16, width, dtype=bf16", "16, width, dtype=torch.float8_e4m3fn")
    assert eight != call
    asked = [
        eight.format(sequences=64, longest=longest, shape=shape, style="")
        for shape in shapes
        for longest in ((1,) if call is DECODE else (4, 512))
    ]
    for told in compiled(f"engine.kernels.gpu.{module}", *asked).values():
        assert told["spilled"] == 0


def test_writing_compiles_with_whole_vectors() -> None:
    call = """
heads = torch.empty(7, 48, 128, dtype=torch.bfloat16)
memory = torch.empty(3, 2, 2, 8, 16, 128, dtype=torch.float8_e4m3fn)
turn_and_write(heads[:, :32], heads[:, 32:40], heads[:, 40:], torch.empty(99, 2, 128),
    torch.empty(7, dtype=torch.int64), memory, 1, torch.empty(7, dtype=torch.int64))
"""
    (told,) = compiled("engine.kernels.gpu.turn_and_write", call).values()
    assert told["spilled"] == told["narrow_loads"] == 0


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.view(torch.uint8).equal(other.view(torch.uint8))
