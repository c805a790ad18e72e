"""Prefill attention over mixed chunks says what is said slowly in float64, in any mix."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.kernels.gpu.attention_plans import PrefillPlan
from engine.kernels.gpu.prefill_attention import prefill_attention
from engine.kernels.style import AttentionStyle
from tests.kernels.attention_cases import (
    FLOATS,
    LAYER,
    PLAIN,
    SINKS,
    TOLERANCE,
    Shape,
    attend_chunks,
    distance,
    expected,
    laid_otherwise,
    make_case,
    styles_with,
)

SHAPES = {
    "shared": Shape(8, 2, 32, 4),
    "alone": Shape(2, 2, 16, 8),
    "seven of one": Shape(7, 1, 24, 5),
    "more heads than rows": Shape(20, 1, 16, 4),
    "width 80": Shape(3, 1, 80, 2),
    "keys wider than values": Shape(3, 3, 48, 4, value_width=32),
    "latent": Shape(20, 1, 36, 4, parts=1, value_width=32),
    "odd latent": Shape(5, 1, 44, 4, parts=1, value_width=24),
}
STYLES = styles_with(19)


def plan(packed: int, tile: int = 16) -> PrefillPlan:
    return PrefillPlan(rows=16, packed=min(16, packed), tile=tile, warps=4, stages=2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_attention(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Whole prompts, chunks behind what is cached, a single token, and nothing."""
    shape = SHAPES[name]
    case = make_case(shape, (7, 40, 3, 18), dtype, device, counts=(7, 3, 0, 1))
    result = attend_chunks(case, PLAIN, plan(shape.heads // shape.kv_heads))
    assert distance(result, expected(case, PLAIN)) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", STYLES)
def test_styles(name: str, device: torch.device) -> None:
    style, counts = STYLES[name], (9, 1, 20, 0)
    case = make_case(
        Shape(6, 2, 16, 4),
        (60, 33, 20, 5),
        torch.float32,
        device,
        counts=counts,
        window=style.window,
    )
    result = attend_chunks(case, style, plan(3))
    assert distance(result, expected(case, style)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("sinks", [None, SINKS[:2]], ids=["plain", "sinks"])
def test_rows_that_see_nothing_of_their_first_tiles(
    sinks: Tensor | None, device: torch.device
) -> None:
    """A window of 3, in a program of 32 tokens that passes 16 at a time."""
    style = AttentionStyle(0.3, window=3, sinks=sinks)
    case = make_case(
        Shape(2, 2, 16, 4), (50, 40), torch.float32, device, counts=(39, 40), window=3
    )
    result = attend_chunks(case, style, PrefillPlan(32, 1, 16, 4, 2))
    assert distance(result, expected(case, style)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("seed", range(6))
def test_any_mix(seed: int, device: torch.device) -> None:
    dice = random.Random(seed)
    counts = [dice.choice((0, 1, 2, 5, 12, 17)) for _ in range(dice.randint(1, 7))] + [1]
    lengths = [count + dice.choice((0, 0, 1, 15, 16, 40)) for count in counts]
    window = dice.choice((None, 1, 2, 8, 16, 17, 30))
    style = AttentionStyle(0.4, window=window)
    shape = Shape(4, 2, 16, dice.choice((1, 3, 8)))
    case = make_case(shape, lengths, torch.float32, device, counts=counts, window=window)
    result = attend_chunks(case, style, plan(dice.choice((1, 2))))
    assert distance(result, expected(case, style)) < TOLERANCE[torch.float32]


def test_many_short_sequences(device: torch.device) -> None:
    """More than are looked at in one go when a tile asks whose it is."""
    counts = [1, 0, 1] * 50
    case = make_case(Shape(1, 1, 16, 4), counts, torch.float32, device, counts=counts)
    result = attend_chunks(case, PLAIN, PrefillPlan(16, 1, 16, 4, 2))
    assert distance(result, expected(case, PLAIN)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("spare", [1, 7, 8, 40])
@pytest.mark.parametrize("counts", [(5, 2), (8, 8), (3, 0), (0, 1)])
def test_rows_behind_the_last_sequence_are_zeros(
    counts: tuple[int, int], spare: int, device: torch.device
) -> None:
    shape = Shape(4, 2, 16, 4)
    case = make_case(shape, (8, 19), torch.float32, device, counts=counts)
    padding = torch.full((spare, 4, 16), torch.nan, device=device)
    padded = replace(case, queries=torch.cat((case.queries, padding)))
    result = attend_chunks(padded, PLAIN, plan(2))
    assert result[: sum(counts)].equal(attend_chunks(case, PLAIN, plan(2)))
    assert result[sum(counts) :].eq(0).all()


def test_chunks_give_what_the_whole_gives(device: torch.device) -> None:
    shape = Shape(4, 2, 16, 4)
    whole = make_case(shape, (37,), torch.float32, device, counts=(37,))
    right = attend_chunks(whole, PLAIN, plan(2))
    for first, last in ((0, 11), (11, 12), (12, 37)):
        chunk = replace(
            whole,
            queries=whole.queries[first:last],
            firsts=torch.tensor([0, last - first], dtype=torch.int32, device=device),
            lengths=torch.tensor([last], dtype=torch.int32, device=device),
        )
        torch.testing.assert_close(attend_chunks(chunk, PLAIN, plan(2)), right[first:last])


def test_any_stride_will_do(device: torch.device) -> None:
    case = make_case(Shape(4, 2, 16, 4), (21, 50), torch.float32, device, counts=(9, 4))
    right = attend_chunks(case, PLAIN, plan(2))
    assert attend_chunks(laid_otherwise(case), PLAIN, plan(2)).equal(right)


def test_its_own_plans(device: torch.device) -> None:
    for dtype, count in ((torch.float32, 30), (torch.float16, 4), (torch.float16, 70)):
        case = make_case(Shape(4, 2, 32, 8), (90, 5), dtype, device, counts=(count, 5))
        result = attend_chunks(case, PLAIN, None)
        assert distance(result, expected(case, PLAIN)) < TOLERANCE[dtype]


def test_it_says_what_the_twin_says(device: torch.device) -> None:
    memory = KvMemory(KvShape(2, 2, 16), 40, 4, torch.float32, device)
    memory.blocks.normal_()
    order = torch.randperm(40).tolist()
    spans = [Span(0, 6, order[:2]), Span(50, 20, order[2:20]), Span(3, 1, order[20:21])]
    queries = torch.randn(27, 6, 16, device=device)
    style = AttentionStyle(0.3, window=31, softcap=4.0, sinks=SINKS.to(device))
    right = AttentionBatch(memory, (), spans).attend(LAYER, style, queries)
    tables = torch.zeros(3, 18, dtype=torch.int32)
    for row, span in enumerate(spans):
        tables[row, : len(span.blocks)] = torch.tensor(span.blocks)
    firsts = torch.tensor([0, 6, 26, 27], dtype=torch.int32, device=device)
    lengths = torch.tensor([6, 70, 4], dtype=torch.int32, device=device)
    result = prefill_attention(
        queries, memory.blocks, LAYER, tables.to(device), firsts, lengths, 20, style,
        plan=plan(3),
    )  # fmt: skip
    assert distance(result, right.cpu().double()) < TOLERANCE[torch.float32]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(32, 8, 128, 16),  # Llama-3.1-8B
        Shape(32, 4, 128, 16),  # Qwen3-30B-A3B
        Shape(128, 1, 576, 64, parts=1, value_width=512),  # DeepSeek
        Shape(28, 4, 128, 16),
        Shape(64, 8, 64, 16),
        Shape(32, 32, 80, 16),
        Shape(16, 8, 256, 16),
    ],
    ids=str,
)
def test_real_shapes(shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    for lengths, counts in (((700,), (300,)), ((5, 400, 64, 900), (1, 4, 64, 130))):
        for style in (PLAIN, AttentionStyle(0.1, window=250, softcap=30.0)):
            case = make_case(shape, lengths, dtype, device, counts=counts, window=style.window)
            result = attend_chunks(case, style, None)
            assert distance(result, expected(case, style)) < TOLERANCE[dtype]
