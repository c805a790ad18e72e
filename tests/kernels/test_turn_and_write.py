"""Queries and keys are turned, keys and values lie at their slots, all else stays."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from engine.attention.rotation import Rotation
from engine.kernels.gpu.attention_floors import turn_floor
from engine.kernels.gpu.turn_and_write import (
    HeadNorms,
    turn_and_write,
    write,
)
from engine.kernels.gpu.turn_twin import turn_and_write_twin
from engine.models.rope import rope_table
from engine.models.rope_config import Rope
from tests.kernels.ahead import compiled
from tests.kernels.attention_cases import FLOATS

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LAYER = 1
MARK = -7.0


@dataclass(frozen=True, slots=True)
class Shape:
    heads: int
    kv_heads: int
    width: int
    block_size: int = 4
    parts: int = 2
    turned: int | None = None
    query_width: int | None = None


SHAPES = {
    "shared": Shape(8, 2, 32),
    "odd": Shape(5, 5, 24, block_size=3),
    "width 80": Shape(3, 1, 80, block_size=16),
    "many": Shape(70, 3, 64),
    "latent": Shape(6, 1, 44, parts=1, turned=12),
    "latent, queries apart": Shape(6, 1, 44, parts=1, turned=12, query_width=12),
    "unturned": Shape(4, 2, 16, turned=0),
}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    queries: Tensor
    keys: Tensor
    values: Tensor | None
    rope: Tensor | None
    positions: Tensor
    memory: Tensor
    slots: Tensor


def make_case(shape: Shape, tokens: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Views of one product where widths are alike; every third token is padding."""
    heads, kv_heads, width = shape.heads, shape.kv_heads, shape.width
    mixed = torch.randn(tokens, heads + 2 * kv_heads, width, device=device).to(dtype)
    queries = mixed[:, :heads, width - (shape.query_width or width) :]
    keys, values = mixed[:, heads : heads + kv_heads], mixed[:, heads + kv_heads :]
    turned = width if shape.turned is None else shape.turned
    rope = torch.randn(50, 2, turned, device=device).to(dtype) if turned else None
    blocks = tokens // shape.block_size + 3
    memory = torch.full((blocks, 2, shape.parts, kv_heads, shape.block_size, width), MARK)
    slots = torch.randperm(blocks * shape.block_size)[:tokens]
    slots[2::3] = -1
    return Case(
        queries,
        keys,
        values if shape.parts == 2 else None,
        rope,
        torch.randint(50, (tokens,), device=device),
        memory.to(device, dtype),
        slots.to(device),
    )


def both(case: Case, norms: HeadNorms | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and memory, ours and the twin's in float64."""
    ours = case.memory.clone()  # with the same strides
    given = case.keys, case.values, case.rope, case.positions
    result = turn_and_write(case.queries, *given, ours, LAYER, case.slots, norms)
    right = case.memory.double()
    keys, values = case.keys.double(), None if case.values is None else case.values.double()
    rope = None if case.rope is None else case.rope.double()
    exact = turn_and_write_twin(
        case.queries.double(),
        keys,
        values,
        rope,
        case.positions,
        right,
        LAYER,
        case.slots,
        norms,
    )
    return result, exact, ours, right


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_its_twin(
    name: str, dtype: torch.dtype, normed: bool, device: torch.device
) -> None:
    case = make_case(SHAPES[name], 7, dtype, device)
    query, key = (torch.randn(row.shape[2], device=device) for row in (case.queries, case.keys))
    norms = HeadNorms(query, key, 1e-3) if normed else None
    turned, exact, memory, right = both(case, norms)
    for made, wanted in ((turned, exact), (memory, right)):
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(made.double(), wanted, rtol=tolerance, atol=3 * tolerance)
    assert memory[:, 0].eq(MARK).all(), "another layer was written to"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_latents_are_normed_before_what_turns(dtype: torch.dtype, device: torch.device) -> None:
    """And queries go where they are wanted, beside what is there."""
    case = make_case(SHAPES["latent, queries apart"], 7, dtype, device)
    norms = HeadNorms(None, torch.randn(32, device=device), 1e-3)
    turned, exact, memory, right = both(case, norms)
    around = torch.full((7, 6, 32 + 12), MARK, device=device, dtype=dtype)
    turn_and_write(
        case.queries, case.keys, None, case.rope, case.positions, case.memory, LAYER,
        case.slots, norms, out=around[..., 32:],
    )  # fmt: skip
    tolerance = TOLERANCE[dtype]
    for made, wanted in ((turned, exact), (memory, right), (around[..., 32:], exact)):
        torch.testing.assert_close(made.double(), wanted, rtol=tolerance, atol=3 * tolerance)
    assert around[..., :32].eq(MARK).all()


def test_values_come_as_they_are(device: torch.device) -> None:
    case = make_case(SHAPES["shared"], 7, torch.bfloat16, device)
    _, _, memory, right = both(case)
    assert memory[:, :, 1].double().equal(right[:, :, 1])


def test_it_turns_as_models_do(device: torch.device) -> None:
    rope = Rope(original_max_position_embeddings=64, rotary_dim=8)
    table = rope_table(rope, 16, 64).to(device)
    heads, positions = torch.randn(5, 3, 16, device=device), torch.tensor([9, 0, 63, 1, 30])
    memory = torch.zeros(2, 1, 2, 3, 4, 16, device=device)
    slots = torch.arange(5, device=device)
    turned = turn_and_write(
        heads, heads, heads, table, positions.to(device, torch.int32), memory, 0, slots
    )
    right = Rotation(table, positions.to(device)).turn(heads)
    torch.testing.assert_close(turned, right)
    written = memory[:, 0].permute(0, 3, 1, 2, 4).flatten(0, 1)[:5]  # [token, part, head, ..]
    torch.testing.assert_close(written[:, 0], right)
    assert written[:, 1].equal(heads)


def test_memory_of_any_stride_will_do(device: torch.device) -> None:
    case = make_case(SHAPES["shared"], 7, torch.float32, device)
    token_major = case.memory.permute(4, 0, 3, 1, 2, 5).contiguous().permute(1, 3, 4, 2, 0, 5)
    other = replace(case, memory=token_major)
    for one, wanted in zip(both(other), both(case), strict=True):
        assert one.equal(wanted)


def test_padding_is_not_read(device: torch.device) -> None:
    case = make_case(SHAPES["shared"], 7, torch.float32, device)
    case.keys[2::3] = torch.nan
    memory = case.memory.clone()
    turn_and_write(
        case.queries,
        case.keys,
        case.values,
        case.rope,
        case.positions,
        memory,
        LAYER,
        case.slots,
    )
    assert memory.isfinite().all()


@pytest.mark.parametrize("parts", [1, 2])
def test_parts_are_written_by_themselves(parts: int, device: torch.device) -> None:
    case = make_case(Shape(5, 3, 24, parts=parts), 7, torch.float16, device)
    memory, right = case.memory.clone(), case.memory.clone()
    rows = [case.keys] if case.values is None else [case.keys, case.values]
    write(rows, memory, LAYER, case.slots)
    turn_and_write_twin(
        case.queries, case.keys, case.values, None, case.positions, right, LAYER, case.slots
    )
    assert memory.equal(right)


def test_no_tokens_are_no_launch(device: torch.device) -> None:
    case = make_case(SHAPES["shared"], 0, torch.float32, device)
    assert both(case)[0].shape == (0, 8, 32)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"keys": torch.zeros(7, 3, 32)}, "keys"),
        ({"values": None}, "values"),
        ({"rope": torch.zeros(50, 2, 34)}, "table"),
        ({"rope": torch.zeros(50, 2, 31)}, "table"),
        ({"norms": HeadNorms(torch.ones(32), torch.ones(8), 1e-5)}, "norms"),
        ({"norms": HeadNorms(None, torch.ones(32), 1e-5)}, "norms"),
        ({"out": torch.zeros(7, 8, 31)}, "out"),
        ({"queries": torch.zeros(7, 32, 8).transpose(1, 2)}, "behind one another"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, object], told: str) -> None:
    case = make_case(SHAPES["shared"], 7, torch.float32, torch.device("cpu"))
    given: dict[str, object] = {
        "queries": case.queries,
        "keys": case.keys,
        "values": case.values,
        "rope": case.rope,
        "positions": case.positions,
        "memory": case.memory,
        "slots": case.slots,
    }
    with pytest.raises(ValueError, match=told):
        turn_and_write(**(given | {"layer": 0} | wrong))  # type: ignore[arg-type]


def test_its_floor_counts_what_is_moved() -> None:
    queries, keys = torch.empty(4, 8, 16).bfloat16(), torch.empty(4, 2, 16).bfloat16()
    rope = torch.empty(100, 2, 16).bfloat16()
    moved = 2 * 4 * (8 + 2 + 2) * 16 * 2 + 4 * 2 * 16 * 2
    assert turn_floor(queries, keys, keys, rope).bytes == moved
    assert turn_floor(queries, keys, keys, rope).operations == 3 * 4 * (8 + 2) * 16
    assert turn_floor(queries, keys, keys, None).operations == 0


def test_it_compiles_for_hopper() -> None:
    call = """
rows = torch.empty(9, 48, 128, dtype=torch.bfloat16)
slots, memory = torch.empty(9, dtype=torch.int64), torch.empty(3, 2, 2, 8, 16, 128).bfloat16()
for norms in (None, HeadNorms(torch.ones(128).bfloat16(), torch.ones(128).bfloat16(), 1e-6)):
    for rope in (None, torch.ones(99, 2, 128).bfloat16()):
        heads = rows.split((32, 8, 8), 1)
        turn_and_write(*heads, rope, slots, memory, 1, slots, norms)
latents, memory = torch.empty(9, 1, 576).bfloat16(), torch.empty(3, 2, 1, 1, 16, 576).bfloat16()
for norms in (None, HeadNorms(None, torch.ones(512).bfloat16(), 1e-6)):
    rope = torch.ones(9, 2, 64)
    turn_and_write(rows[..., :64], latents, None, rope, slots, memory, 1, slots, norms)
"""
    told = compiled("engine.kernels.gpu.turn_and_write", call)["_turn_and_write"]
    assert told["spilled"] == 0
    assert told["registers"] <= 128, "four programs of a multiprocessor, at least"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("tokens", [1, 64, 2048])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(32, 8, 128, 16),  # Llama-3.1-8B
        Shape(32, 4, 128, 16),  # Qwen3-30B-A3B
        Shape(128, 1, 576, 64, parts=1, turned=64, query_width=64),  # DeepSeek
    ],
    ids=str,
)
def test_real_shapes(
    shape: Shape, tokens: int, dtype: torch.dtype, device: torch.device
) -> None:
    case, latent = make_case(shape, tokens, dtype, device), shape.parts == 1
    key = torch.randn(shape.width - 64 if latent else shape.width, device=device)
    query = None if latent else torch.randn(shape.width, device=device)
    for norms in (None, HeadNorms(query, key, 1e-6)):
        turned, exact, memory, right = both(case, norms)
        tolerance = TOLERANCE[dtype]
        for made, wanted in ((turned, exact), (memory, right)):
            torch.testing.assert_close(
                made.double(), wanted, rtol=tolerance, atol=3 * tolerance
            )
