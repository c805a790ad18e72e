"""Kernels of a decode step let the next launch begin, and wait before they read or write."""

import pytest

from engine.kernels.gpu.few_rows import OUTPUTS
from engine.kernels.gpu.overlapping import (
    L2_ROOM,
    overlap_launches,
    pdl_options,
    steps_brought,
)
from tests.kernels.ahead import compiled

ON = "from engine.kernels.gpu.overlapping import overlap_launches; overlap_launches(on={on})\n"
CALLS = {
    "norms": """
x = torch.ones(3, 256).bfloat16()
rms_norm(x, x[0], 1e-5)
add_rms_norm(x, x, x[0], 1e-5)
""",
    "gates": 'gated(torch.ones(3, 512).bfloat16(), "silu")',
    "turn_and_write": """
rows, slots = torch.empty(9, 48, 128).bfloat16(), torch.empty(9).long()
memory, rope = torch.empty(3, 2, 2, 8, 16, 128).bfloat16(), torch.ones(99, 2, 128)
turn_and_write(*rows.split((32, 8, 8), 1), rope.bfloat16(), slots, memory, 1, slots)
""",
    "decode_attention": """
memory = torch.empty(9, 2, 2, 8, 16, 128).bfloat16()
queries = torch.empty(1, 32, 128).bfloat16()
tables, lengths = torch.empty(1, 128, dtype=torch.int32), torch.empty(1, dtype=torch.int32)
decode_attention(queries, memory, 1, tables, lengths, AttentionStyle(0.1))
""",
    "few_rows": """
x, weight = torch.empty(1, 4096).bfloat16(), torch.empty(256, 4096).bfloat16()
few_rows(x, weight)
""",
    "few_rows_fp8": """
from engine.kernels.fusion import RowNorm
x, values = torch.empty(1, 4096).bfloat16(), torch.empty(1, 256, 4096)
for groups in (1, 32):
    weight = Fp8Weight(values.to(torch.float8_e4m3fn), torch.empty(1, groups, 256))
    few_rows_fp8(x, weight, None, Fusion(RowNorm(x[0], 1e-5)))
""",
    "expert_choice": "choose_experts(torch.ones(1, 128), ChoiceRule(8))",
    "few_row_experts": """
from engine.kernels.fusion import Gate
x, choice = torch.ones(1, 256).bfloat16(), Choice(torch.ones(1, 8), torch.ones(1, 8).long())
inward = ExpertWeights(torch.empty(9, 128, 256).bfloat16(), None)
outward = ExpertWeights(torch.empty(9, 256, 64).bfloat16(), None)
mix_few_rows(x, choice, inward, outward, Fusion(gate=Gate("silu")))
""",
}
KERNELS = {
    "norms": {"_norm", "_add_norm"},
    "gates": {"_gate"},
    "turn_and_write": {"_turn_and_write"},
    "decode_attention": {"_decode", "_add_parts"},
    "few_rows": {"_few_rows"},
    "few_rows_fp8": {"_few_rows_fp8"},
    "expert_choice": {"_choose"},
    "few_row_experts": {"_few_row_gates", "_few_row_mixture"},
}
WEIGHTS = {"few_rows": OUTPUTS, "few_rows_fp8": 2 * OUTPUTS}
"""Loads of a weight before the wait: in fp8 a scale is loaded for each vector."""


@pytest.mark.parametrize("name", CALLS)
def test_each_waits_once_and_reads_nothing_before(name: str) -> None:
    """But for weights, which nobody writes: the first of a product of few rows."""
    told = compiled(f"engine.kernels.gpu.{name}", ON.format(on=True) + CALLS[name])
    assert told.keys() == KERNELS[name]
    for one in told.values():
        assert one["begins_early"] == one["waits"] == one["lets_begin"] == 1
        assert one["loads_before"] == WEIGHTS.get(name, 0)


@pytest.mark.parametrize("name", CALLS)
def test_switched_off_there_is_nothing_of_it(name: str) -> None:
    told = compiled(f"engine.kernels.gpu.{name}", ON.format(on=False) + CALLS[name])
    for one in told.values():
        assert one["begins_early"] == one["waits"] == one["lets_begin"] == 0


@pytest.mark.parametrize(
    ("outputs", "inputs", "around", "brought"),
    [
        (4096, 4096, "", 3),  # all of it
        (6144, 4096, "", 2),
        (4096, 14336, "", 3),
        (28672, 4096, ", None, Fusion(gate=Gate('silu'))", 0),  # more than there is room for
        (128, 512, "", 0),  # a single step
    ],
)
def test_weights_are_brought_to_l2_before_the_wait(
    outputs: int, inputs: int, around: str, brought: int
) -> None:
    """As many of the steps behind the first as there is room for: a line for each thread."""
    call = (
        "from engine.kernels.fusion import Gate\n"
        f"x, weight = torch.empty(1, {inputs}), torch.empty({outputs}, {inputs})\n"
        f"few_rows(x.bfloat16(), weight.bfloat16(){around})\n"
    )
    on = ON.format(on="True, brings=True")
    told = compiled("engine.kernels.gpu.few_rows", on + call)["_few_rows"]
    assert told["brings"] == brought
    assert told["loads_before"] == OUTPUTS
    plain = compiled("engine.kernels.gpu.few_rows", ON.format(on=True) + call)["_few_rows"]
    assert plain["brings"] == 0


def test_it_is_off_until_it_is_switched_on() -> None:
    assert pdl_options() == {}
    assert steps_brought(1, 4) == 0
    overlap_launches(on=True)
    try:
        assert pdl_options()["launch_pdl"]
        assert steps_brought(1, 4) == 0
        overlap_launches(on=True, brings=True)
        assert [steps_brought(size, 4) for size in (1, L2_ROOM // 2, L2_ROOM + 1)] == [3, 2, 0]
        assert steps_brought(1, 1) == 0
    finally:
        overlap_launches(on=False)
    assert pdl_options() == {}
    assert steps_brought(1, 4) == 0
