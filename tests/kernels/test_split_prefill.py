"""Prefill attention that is split over the context says what it says in one piece."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kernels.gpu.attention_plans import (
    LEAST_STRETCH,
    MOST_SPLITS,
    ROWS,
    ChunkSizes,
    PrefillPlan,
    plan_prefill,
    plan_tiles,
)
from engine.kernels.gpu.decode_attention import decode_attention
from engine.kernels.gpu.paged_call import Heads
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
    "seven of one, blocks of 5": Shape(7, 1, 24, 5),
    "more heads than rows": Shape(20, 1, 16, 4),
    "width 80, blocks of 3": Shape(3, 1, 80, 3),
    "latent": Shape(20, 1, 36, 4, parts=1, value_width=32),
    "odd latent": Shape(5, 1, 44, 4, parts=1, value_width=24),
}
STYLES = styles_with(37)
TILE, PROCESSORS = 16, 132
LLAMA, QWEN = Heads(32, 8, 128, 128, 2, 2), Heads(32, 4, 128, 128, 2, 2)
GPT_OSS, LATENT = Heads(64, 8, 64, 64, 2, 2), Heads(128, 1, 576, 512, 1, 2)
BEHIND_32K = 32768 + 128


def plan(packed: int, splits: int = 3, shortest: int = TILE) -> PrefillPlan:
    return PrefillPlan(16, min(16, packed), TILE, 4, 2, splits, shortest)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_attention(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Behind a long context, behind nothing, alone in a tile, and nothing at all."""
    shape = SHAPES[name]
    case = make_case(shape, (90, 6, 40, 0, 17), dtype, device, counts=(3, 6, 1, 0, 2))
    result = attend_chunks(case, PLAIN, plan(shape.heads // shape.kv_heads))
    assert distance(result, expected(case, PLAIN)) < TOLERANCE[dtype]


@pytest.mark.parametrize("splits", [2, 5])
@pytest.mark.parametrize("name", STYLES)
def test_styles(name: str, splits: int, device: torch.device) -> None:
    style, shape = STYLES[name], Shape(6, 2, 16, 4)
    case = make_case(
        shape, (100, 33, 5), torch.float32, device, counts=(9, 1, 0), window=style.window
    )
    result = attend_chunks(case, style, plan(3, splits))
    assert distance(result, expected(case, style)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("seed", range(8))
def test_any_mix(seed: int, device: torch.device) -> None:
    dice = random.Random(seed)
    counts = [dice.choice((0, 1, 2, 5, 17)) for _ in range(dice.randint(1, 4))] + [1]
    lengths = [count + dice.choice((0, 1, 15, 16, 48, 70)) for count in counts]
    window = dice.choice((None, None, 2, 16, 17, 30, 60))
    style = AttentionStyle(0.4, window=window)
    shape = Shape(4, 2, 16, dice.choice((1, 3, 8)))
    case = make_case(shape, lengths, torch.float32, device, counts=counts, window=window)
    splits, shortest = dice.choice((2, 3, 7)), dice.choice((TILE, 2 * TILE))
    result = attend_chunks(case, style, plan(dice.choice((1, 2)), splits, shortest))
    assert distance(result, expected(case, style)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("window", [None, 3], ids=["all", "window"])
def test_rows_that_see_nothing_of_a_stretch(window: int | None, device: torch.device) -> None:
    """A tile of 32 tokens from stretches of 16: of the last, the first 16 rows see nothing."""
    style = AttentionStyle(0.3, window=window, sinks=SINKS[:2])
    shape = Shape(2, 2, 16, 4)
    case = make_case(shape, (64, 40), torch.float32, device, counts=(32, 40), window=window)
    result = attend_chunks(case, style, PrefillPlan(32, 1, TILE, 4, 2, 4, TILE))
    assert distance(result, expected(case, style)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("spare", [1, 8, 40])
@pytest.mark.parametrize("counts", [(5, 2), (3, 0), (0, 1)])
def test_padding_is_zeros(counts: tuple[int, int], spare: int, device: torch.device) -> None:
    case = make_case(Shape(4, 2, 16, 4), (50, 39), torch.float32, device, counts=counts)
    padding = torch.full((spare, 4, 16), torch.nan, device=device)
    padded = replace(case, queries=torch.cat((case.queries, padding)))
    result = attend_chunks(padded, AttentionStyle(0.3, sinks=SINKS[:4]), plan(2))
    assert result[: sum(counts)].equal(
        attend_chunks(case, AttentionStyle(0.3, sinks=SINKS[:4]), plan(2))
    )
    assert result[sum(counts) :].eq(0).all()


def test_any_stride_will_do(device: torch.device) -> None:
    case = make_case(Shape(4, 2, 16, 4), (21, 50), torch.float32, device, counts=(9, 4))
    right = attend_chunks(case, PLAIN, plan(2))
    assert attend_chunks(laid_otherwise(case), PLAIN, plan(2)).equal(right)


def test_a_short_context_is_not_split(device: torch.device) -> None:
    """One stretch is what an unsplit launch reads: the same to the bit, beside a long one."""
    case = make_case(Shape(4, 2, 16, 4), (32, 200), torch.float32, device, counts=(2, 2))
    split = attend_chunks(case, PLAIN, plan(2, splits=4, shortest=2 * TILE))
    whole = attend_chunks(case, PLAIN, plan(2, splits=1))
    assert split[:2].equal(whole[:2])
    assert not split[2:].equal(whole[2:])


def test_one_query_is_what_decode_attention_says(device: torch.device) -> None:
    """Cut alike, and added up by the same kernel."""
    case = make_case(Shape(4, 2, 16, 4), (150, 3), torch.float32, device, counts=(1, 1))
    decoded = decode_attention(
        case.queries, case.memory, LAYER, case.tables, case.lengths, PLAIN
    )
    result = attend_chunks(case, PLAIN, plan(2, splits=4))
    torch.testing.assert_close(result, decoded, rtol=1e-5, atol=1e-5)


def test_its_own_plan_is_split(device: torch.device) -> None:
    shape, length = Shape(2, 1, 16, 16), 2 * LEAST_STRETCH + 40
    case = make_case(shape, (length,), torch.float16, device, counts=(3,))
    sizes = ChunkSizes(3, 1, 3, length)
    assert plan_prefill(Heads(2, 1, 16, 16, 2, 2), sizes, 4).splits == 2
    assert (
        distance(attend_chunks(case, PLAIN, None), expected(case, PLAIN))
        < TOLERANCE[torch.float16]
    )


def programs_of(heads: Heads, sizes: ChunkSizes) -> tuple[int, int]:
    """Programs if chunks are alike, and how many run at once."""
    tiles = plan_tiles(heads, sizes.longest)
    each = -(-sizes.tokens // sizes.sequences)
    groups = -(-heads.sharing // tiles.packed)
    together = {128: 1, 64: 2, 16: 3}[tiles.rows]
    if heads.padded > 256:
        together = {64: 1, 16: 2}[tiles.rows]
    programs = sizes.sequences * -(-each // tiles.span) * heads.kv_heads * groups
    return programs, together * PROCESSORS


@given(
    heads=st.sampled_from((LLAMA, QWEN, GPT_OSS, LATENT)),
    sequences=st.integers(1, 9) | st.integers(1, 300),
    longest=st.integers(1, 99) | st.integers(1, 9000),
    share=st.floats(0, 1),
    most_tokens=st.integers(16, 1 << 17),
    window=st.none() | st.integers(1, 1 << 17),
)
def test_a_wave_is_filled_and_no_more(
    heads: Heads,
    sequences: int,
    longest: int,
    share: float,
    most_tokens: int,
    window: int | None,
) -> None:
    tokens = longest + int(share * (sequences - 1) * longest)
    sizes = ChunkSizes(tokens, sequences, longest, most_tokens, window)
    plan = plan_prefill(heads, sizes, PROCESSORS)
    programs, slots = programs_of(heads, sizes)
    assert replace(plan, splits=1) == plan_tiles(heads, longest)
    assert plan.shortest % plan.tile == 0
    if programs >= slots:
        assert plan.splits == 1
        return
    assert plan.splits == 1 or programs * plan.splits <= slots
    seen = most_tokens if window is None else min(most_tokens, window + plan.span - 1)
    assert plan.splits == 1 or seen >= plan.splits * LEAST_STRETCH
    finest = min(MOST_SPLITS, max(1, seen // LEAST_STRETCH))
    assert plan.splits == finest or 2 * programs * plan.splits > slots
    parts = tokens * heads.heads * plan.splits
    assert plan.splits == 1 or parts <= slots * plan.rows


@pytest.mark.parametrize(
    ("heads", "tokens", "splits"),
    [(LLAMA, 128, 4), (LLAMA, 5, 33), (QWEN, 128, 4), (LATENT, 5, 13), (LLAMA, 512, 1)],
)
def test_a_short_chunk_behind_a_long_context(heads: Heads, tokens: int, splits: int) -> None:
    sizes = ChunkSizes(tokens, 1, tokens, BEHIND_32K)
    assert plan_prefill(heads, sizes, PROCESSORS).splits == splits


@pytest.mark.parametrize(("window", "splits"), [(128, 1), (1024, 2), (1 << 33, 4)])
def test_a_window_is_not_split_into_short_stretches(window: int, splits: int) -> None:
    sizes = ChunkSizes(128, 1, 128, BEHIND_32K, window)
    assert plan_prefill(LLAMA, sizes, PROCESSORS).splits == splits


@pytest.mark.parametrize("sharing", range(1, 17))
def test_a_warm_up_meets_each_tile_split_if_it_ever_is(sharing: int) -> None:
    """It launches chunks that double: the first of each kind is one tile."""
    heads = Heads(8 * sharing, 8, 128, 128, 2, 2)
    first = {plan_tiles(heads, 1 << power).rows: 1 << power for power in range(12, -1, -1)}
    assert first.keys() <= set(ROWS)
    assert all(plan_tiles(heads, count).span >= count for count in first.values())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(32, 8, 128, 16),  # Llama-3.1-8B
        Shape(32, 4, 128, 16),  # Qwen3-30B-A3B
        Shape(64, 8, 64, 16),  # gpt-oss
        Shape(128, 1, 576, 64, parts=1, value_width=512),  # DeepSeek
        Shape(16, 8, 256, 16),
    ],
    ids=str,
)
def test_real_shapes(shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    for lengths, counts in (((3000,), (130,)), ((2500, 60, 0, 1400), (5, 3, 0, 17))):
        for style in (PLAIN, AttentionStyle(0.1, window=1300, softcap=30.0)):
            case = make_case(shape, lengths, dtype, device, counts=counts, window=style.window)
            for planned in (
                None,
                replace(plan_tiles(heads_of(shape, dtype), max(counts)), splits=5),
            ):
                result = attend_chunks(case, style, planned)
                assert distance(result, expected(case, style)) < TOLERANCE[dtype]


def heads_of(shape: Shape, dtype: torch.dtype) -> Heads:
    width = shape.value_width or shape.width
    sizes = shape.heads, shape.kv_heads, shape.width, width, shape.parts
    return Heads(*sizes, dtype.itemsize)
