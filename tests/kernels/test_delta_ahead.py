"""Gated delta nets compile for Hopper at the widths that are served."""

import pytest

from tests.kernels.ahead import compiled
from tests.kernels.recurrent_calls import GIVEN, OVERLAPPED
from tests.kernels.test_attention_ahead import SHARED_BYTES

SIZES = {"sizes": "16, 32, 128, 128, 3", "rates": 2}
WEIGHTS = """
from engine.kernels.delta_net import DeltaWeights
norm = torch.empty(shape.value_width, dtype=dtype)
weights = DeltaWeights(shape, convolution, of_heads, of_heads, norm, 1e-6)
"""
STEP = "delta_net_step(inputs, states, contexts, weights)"
CHUNKS = "delta_net_chunks(inputs, states, contexts, chunks, weights)"
MOST_SPILLED = 256  # bytes, of what is outside of loops in bfloat16, or of tests in float32


def test_a_step_holds_a_state_in_registers() -> None:
    given = OVERLAPPED + GIVEN.format(dtype="bfloat16", sequences=9, **SIZES) + WEIGHTS
    told = compiled("engine.kernels.gpu.delta_net", given + STEP)["_step"]
    assert told["spilled"] == 0
    assert told["shared"] < SHARED_BYTES
    assert told["begins_early"] == told["waits"] == 1
    assert told["loads_before"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_chunks_are_multiplied_by_tensor_cores(dtype: str) -> None:
    given = GIVEN.format(dtype=dtype, sequences=2, **SIZES) + WEIGHTS
    found = compiled("engine.kernels.gpu.delta_net_chunks", given + CHUNKS)
    assert found.keys() == {"_convolve", "_keep_last", "solve", "_carry", "_finish"}
    for told in found.values():
        assert told["spilled"] <= MOST_SPILLED
        assert told["shared"] < SHARED_BYTES
        assert told["narrow_stores"] == 0
    if dtype == "bfloat16":
        assert found["_carry"]["spilled"] == found["solve"]["spills_in_loops"] == 0
        assert min(found["_carry"]["wgmma"], found["solve"]["wgmma"]) > 0
