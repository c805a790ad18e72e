"""Gated delta nets compile for Hopper at the widths that are served."""

import pytest

from tests.kernels.ahead import compiled
from tests.kernels.test_attention_ahead import SHARED_BYTES

GIVEN = """
from engine.kernels.contract import Chunks, Contexts
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape
shape, dtype, i32 = RecurrentShape(16, 32, 128, 128, 3), torch.{dtype}, torch.int32
inputs = RecurrentInputs(
    torch.empty(9, shape.channels + shape.values, dtype=dtype),
    torch.empty(9, 2 * shape.value_heads, dtype=dtype),
)
states = LayerStates(
    torch.empty(3, shape.value_heads, shape.key_width, shape.value_width),
    torch.empty(3, shape.taps, shape.channels), 0,
)
weights = DeltaWeights(
    shape, torch.empty(shape.channels, shape.taps + 1, dtype=dtype),
    torch.empty(shape.value_heads), torch.empty(shape.value_heads),
    torch.empty(shape.value_width, dtype=dtype), 1e-6,
)
contexts = Contexts(torch.empty({sequences}, 4, dtype=i32), torch.empty({sequences}, dtype=i32))
"""
STEP = "delta_net_step(inputs, states, contexts, weights)"
CHUNKS = """
chunks = Chunks(torch.empty({sequences} + 1, dtype=i32), 9)
delta_net_chunks(inputs, states, contexts, chunks, weights)
"""
OVERLAPPED = """
from engine.kernels.gpu.overlapping import overlap_launches
overlap_launches(on=True)
"""
MOST_SPILLED = 256  # bytes, of what is outside of loops in bfloat16, or of tests in float32


def test_a_step_holds_a_state_in_registers() -> None:
    given = GIVEN.format(dtype="bfloat16", sequences=9)
    told = compiled("engine.kernels.gpu.delta_net", OVERLAPPED + given + STEP)["_step"]
    assert told["spilled"] == 0
    assert told["shared"] < SHARED_BYTES
    assert told["begins_early"] == told["waits"] == 1
    assert told["loads_before"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_chunks_are_multiplied_by_tensor_cores(dtype: str) -> None:
    call = (GIVEN + CHUNKS).format(dtype=dtype, sequences=2)
    found = compiled("engine.kernels.gpu.delta_net_chunks", call)
    assert found.keys() == {"_convolve", "_keep_last", "solve", "_carry", "_finish"}
    for told in found.values():
        assert told["spilled"] <= MOST_SPILLED
        assert told["shared"] < SHARED_BYTES
        assert told["narrow_stores"] == 0
    if dtype == "bfloat16":
        assert found["_carry"]["spilled"] == found["solve"]["spills_in_loops"] == 0
        assert min(found["_carry"]["wgmma"], found["solve"]["wgmma"]) > 0
