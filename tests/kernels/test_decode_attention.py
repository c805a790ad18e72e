"""Decode attention over paged KV says what is said slowly in float64, however it is cut."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.kernels.gpu.attention_plans import DecodePlan
from engine.kernels.gpu.context_parts import PARTS_AT_ONCE
from engine.kernels.gpu.decode_attention import decode_attention
from engine.kernels.style import AttentionStyle
from tests.kernels.attention_cases import (
    FLOATS,
    LAYER,
    PLAIN,
    TOLERANCE,
    Case,
    Shape,
    distance,
    expected,
    laid_otherwise,
    make_case,
    on_its_device,
    styles_with,
)

SHAPES = {
    "shared": Shape(8, 2, 32, 4),
    "alone": Shape(2, 2, 16, 8),
    "many heads of one": Shape(21, 1, 16, 4),
    "width 80": Shape(3, 1, 80, 2),
    "width 96": Shape(3, 1, 96, 16),
    "width 112": Shape(4, 1, 112, 64),
    "blocks of 5": Shape(14, 2, 24, 5),
    "blocks of 1": Shape(2, 1, 16, 1),
    "latent": Shape(20, 1, 36, 4, parts=1, value_width=32),
    "odd latent": Shape(5, 1, 44, 4, parts=1, value_width=24),
    "short values": Shape(4, 2, 32, 4, value_width=20),
}
STYLES = styles_with(19)
PLAN = DecodePlan(rows=16, tile=16, splits=3, warps=4, stages=2)


def attend(case: Case, style: AttentionStyle, plan: DecodePlan | None = PLAN) -> Tensor:
    return decode_attention(
        case.queries, case.memory, LAYER, case.tables, case.lengths, on_its_device(style, case),
        case.shape.value_width, plan=plan,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_attention(name: str, dtype: torch.dtype, device: torch.device) -> None:
    case = make_case(SHAPES[name], (5, 67, 0, 1), dtype, device)
    assert distance(attend(case, PLAIN), expected(case, PLAIN)) < TOLERANCE[dtype]


@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("name", STYLES)
def test_styles(name: str, splits: int, device: torch.device) -> None:
    style, lengths = STYLES[name], (3, 0, 90, 20, 16)
    case = make_case(Shape(6, 2, 16, 4), lengths, torch.float32, device, window=style.window)
    result = attend(case, style, replace(PLAN, splits=splits))
    assert distance(result, expected(case, style)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("style", [PLAIN, STYLES["all of it"]], ids=["plain", "all"])
def test_a_row_of_length_zero_is_zero(style: AttentionStyle, device: torch.device) -> None:
    case = make_case(Shape(6, 2, 16, 4), (0, 33, 0), torch.float32, device)
    result = attend(case, style)
    assert result[0].eq(0).all()
    assert result[2].eq(0).all()


def test_a_sequence_does_not_depend_on_its_neighbours(device: torch.device) -> None:
    case = make_case(Shape(6, 2, 16, 4), (33, 50, 7), torch.float16, device)
    together = attend(case, PLAIN)
    for row in range(3):
        alone = replace(
            case,
            queries=case.queries[row : row + 1],
            tables=case.tables[row : row + 1],
            lengths=case.lengths[row : row + 1],
        )
        assert attend(alone, PLAIN)[0].equal(together[row])


def test_blocks_may_be_shared(device: torch.device) -> None:
    case = make_case(Shape(4, 2, 16, 4), (40, 40, 40), torch.float32, device)
    case.tables[1:, :9] = case.tables[0, :9]
    case.tables[2] = case.tables[0]
    assert distance(attend(case, PLAIN), expected(case, PLAIN)) < TOLERANCE[torch.float32]


def test_any_stride_will_do(device: torch.device) -> None:
    case = make_case(Shape(4, 2, 16, 4), (21, 50), torch.float32, device)
    assert attend(laid_otherwise(case), PLAIN).equal(attend(case, PLAIN))


def test_parts_that_are_more_than_are_loaded_at_once(device: torch.device) -> None:
    """With 40 stretches allowed, sequences have 38, 33, 32, 1 and none."""
    style, lengths = STYLES["sinks"], (600, 527, 512, 16, 0)
    assert [-(-length // PLAN.tile) for length in lengths] == [38, 33, PARTS_AT_ONCE, 1, 0]
    case = make_case(Shape(6, 2, 16, 4), lengths, torch.float32, device)
    result = attend(case, style, replace(PLAN, splits=40))
    assert distance(result, expected(case, style)) < TOLERANCE[torch.float32]


def test_huge_scores_are_no_trouble(device: torch.device) -> None:
    case = make_case(Shape(4, 2, 16, 4), (40, 3), torch.float32, device)
    for style in (AttentionStyle(3e4), AttentionStyle(3e4, softcap=5.0), AttentionStyle(0.0)):
        assert distance(attend(case, style), expected(case, style)) < 1e-3


def test_its_own_plans(device: torch.device) -> None:
    for lengths in ((200,), (3, 130, 0, 64, 65)):
        case = make_case(Shape(4, 2, 32, 8), lengths, torch.float32, device)
        result = attend(case, PLAIN, plan=None)
        assert distance(result, expected(case, PLAIN)) < TOLERANCE[torch.float32]


def test_it_says_what_the_twin_says(device: torch.device) -> None:
    memory = KvMemory(KvShape(2, 2, 16), 40, 4, torch.float32, device)
    memory.blocks.normal_()
    order = torch.randperm(40).tolist()
    spans = [Span(6, 1, order[:2]), Span(70, 1, order[2:20]), Span(0, 1, order[20:21])]
    queries = torch.randn(3, 6, 16, device=device)
    style = AttentionStyle(0.3, window=31, softcap=4.0, sinks=torch.randn(6, device=device))
    right = AttentionBatch(memory, spans, ()).attend(LAYER, style, queries)
    tables = torch.zeros(3, 18, dtype=torch.int32)
    for row, span in enumerate(spans):
        tables[row, : len(span.blocks)] = torch.tensor(span.blocks)
    lengths = torch.tensor([7, 71, 1], dtype=torch.int32, device=device)
    result = decode_attention(
        queries, memory.blocks, LAYER, tables.to(device), lengths, style, plan=PLAN
    )
    assert distance(result, right.cpu().double()) < TOLERANCE[torch.float32]


def test_no_sequences_are_no_launch(device: torch.device) -> None:
    case = make_case(Shape(4, 2, 16, 4), (5,), torch.float32, device)
    none = replace(
        case, queries=case.queries[:0], tables=case.tables[:0], lengths=case.lengths[:0]
    )
    assert attend(none, PLAIN, plan=None).shape == (0, 64)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(32, 8, 128, 16),  # Llama-3.1-8B
        Shape(32, 4, 128, 16),  # Qwen3-30B-A3B
        Shape(128, 1, 576, 64, parts=1, value_width=512),  # DeepSeek
        Shape(64, 8, 64, 16),
        Shape(32, 32, 80, 16),
        Shape(16, 8, 256, 16),
    ],
    ids=str,
)
def test_real_shapes(shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    for lengths in ((2048,), tuple(range(1, 2049, 32))):
        for style in (PLAIN, AttentionStyle(0.1, window=1000, softcap=30.0)):
            case = make_case(shape, lengths, dtype, device, window=style.window)
            result = attend(case, style, plan=None)
            assert distance(result, expected(case, style)) < TOLERANCE[dtype]
