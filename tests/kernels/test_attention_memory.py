"""KV memory of more than 2^31 numbers, and calls that do not fit together."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels.gpu.attention_floors import decode_floor, prefill_floor
from engine.kernels.gpu.attention_plans import plan_decode, plan_tiles
from engine.kernels.gpu.decode_attention import decode_attention
from engine.kernels.gpu.paged_call import Heads
from engine.kernels.gpu.prefill_attention import prefill_attention
from engine.kernels.gpu.turn_and_write import turn_and_write
from engine.kernels.style import AttentionStyle
from tests.kernels.attention_cases import LAYER, Case, Shape, distance, expected, make_case

SHAPE = Shape(4, 2, 16, 4)
PLAIN = AttentionStyle(0.3)
FAR = 1 << 29  # numbers from block to block
PROCESSORS = 132
LLAMA, QWEN = Heads(32, 8, 128, 128, 2, 2), Heads(32, 4, 128, 128, 2, 2)
LATENT = Heads(128, 1, 576, 512, 1, 2)


def attend(case: Case, memory: Tensor) -> tuple[Tensor, Tensor]:
    decoded = decode_attention(case.queries, memory, LAYER, case.tables, case.lengths, PLAIN)
    return decoded, prefill_attention(
        case.queries, memory, LAYER, case.tables, case.firsts, case.lengths, 1, PLAIN
    )


def apart(near: Tensor, numbers: int, tmp_path: Path) -> Tensor:
    """Room for the same blocks, so many numbers from one to the next.

    Without a device it is in a file with holes, mapped: addresses, and next to no memory.
    """
    whole = numbers * len(near)
    if near.is_cuda:
        room = near.new_empty(whole)
    else:
        room = torch.from_numpy(
            np.memmap(tmp_path / "memory", np.float16, "w+", shape=(whole,))
        )
    return room.as_strided((len(near), *near.shape[1:]), (numbers, *near.stride()[1:]))


def test_blocks_may_lie_billions_of_numbers_apart(tmp_path: Path, device: torch.device) -> None:
    case = make_case(SHAPE, (9, 14), torch.float16, device, spare=0)
    near = case.memory
    far = apart(near, FAR, tmp_path)
    assert (len(near) - 1) * FAR > 1 << 31
    far.copy_(near)
    for result in attend(case, far):
        assert distance(result, expected(case, PLAIN)) < 2e-3
    heads = torch.randn(1, 2, 16, device=device).half()
    last = torch.tensor([len(near) * 4 - 1], device=device)
    turn_and_write(heads, heads, heads, None, last, far, LAYER, last)
    assert far[-1, LAYER, 1, :, -1].equal(heads[0])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"queries": torch.zeros(2, 4, 8)}, "queries"),
        ({"queries": torch.zeros(2, 3, 16)}, "unevenly"),
        ({"queries": torch.zeros(2, 4, 16).half()}, "float16"),
        ({"queries": torch.zeros(2, 16, 4).transpose(1, 2)}, "behind one another"),
        ({"layer": 2}, "layer 2"),
        ({"tables": torch.zeros(2, 3, dtype=torch.int64)}, "int32"),
        ({"tables": torch.zeros(3, 3, dtype=torch.int32)}, "3 tables"),
        ({"style": AttentionStyle(1, sinks=torch.zeros(3))}, "sinks"),
        ({"value_width": 17}, "value of 17"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, object], told: str) -> None:
    case = make_case(SHAPE, (9, 14), torch.float32, torch.device("cpu"))
    given = {
        "queries": case.queries,
        "memory": case.memory,
        "layer": LAYER,
        "tables": case.tables,
        "lengths": case.lengths,
        "style": PLAIN,
    }
    more = {"firsts": case.firsts, "longest": 1}
    with pytest.raises(ValueError, match=told):
        decode_attention(**(given | wrong))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=told):
        prefill_attention(**(given | more | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("heads", [LLAMA, QWEN, LATENT])
@pytest.mark.parametrize("sequences", [1, 2, 5, 16, 64, 512])
def test_a_decode_step_fills_the_device(heads: Heads, sequences: int) -> None:
    """With programs for all multiprocessors, of which few find nothing to do."""
    plan = plan_decode(heads, sequences, 131072, PROCESSORS)
    groups = -(-heads.sharing // plan.rows)
    programs = sequences * heads.kv_heads * groups * plan.splits
    assert programs >= 0.95 * PROCESSORS
    assert plan.splits == 1 or programs <= 13 * PROCESSORS


def test_a_short_window_is_not_split_finer_than_a_tile() -> None:
    assert plan_decode(LLAMA, 1, 128, PROCESSORS).splits == 2


@pytest.mark.parametrize("heads", [LLAMA, QWEN, LATENT, Heads(8, 8, 80, 80, 2, 4)])
@pytest.mark.parametrize("longest", [1, 3, 64, 8192])
def test_a_prefill_tile_is_no_larger_than_the_chunk(heads: Heads, longest: int) -> None:
    plan = plan_tiles(heads, longest)
    assert plan.packed * plan.span <= plan.rows
    assert plan.rows <= max(16, 4 * heads.sharing * longest)


def test_floors_count_what_is_seen() -> None:
    token = 8 * 128 * 2 * 2
    rows = 2 * 32 * 128 * 2
    assert decode_floor(LLAMA, [2048] * 64).bytes == 64 * (2048 * token + rows)
    assert decode_floor(LLAMA, [2048], window=100).bytes == 100 * token + rows
    assert decode_floor(LLAMA, [0]).operations == 0
    assert decode_floor(LATENT, [10]).bytes == 10 * 1152 + 128 * (576 + 512) * 2
    for window in (None, 3, 7):
        pairs = sum(min(first + 1, window or 99) for first in range(4, 10))
        floor = prefill_floor(LLAMA, [(6, 10)], window)
        assert floor.operations == 4 * pairs * 32 * 128
