"""Mamba-2 layers compile for Hopper at the sizes of published models."""

import pytest

from tests.kernels.ahead import compiled
from tests.kernels.recurrent_calls import GIVEN, OVERLAPPED
from tests.kernels.test_attention_ahead import SHARED_BYTES

WEIGHTS = """
from engine.kernels.mamba import MambaWeights
norm, bias = torch.empty(shape.values, dtype=dtype), torch.empty(shape.channels)
weights = MambaWeights(
    shape, convolution, bias, of_heads, of_heads, of_heads, norm if {groups} else None,
    {groups}, 1e-5,
)
"""
STEP = "mamba_step(inputs, states, contexts, weights)"
CHUNKS = "mamba_chunks(inputs, states, contexts, chunks, weights)"
MODELS = {
    "Nemotron-3-Nano-30B-A3B": ("8, 64, 128, 64, 3", 8),
    "Granite-4.0-H-Small": ("1, 128, 128, 64, 3", 1),
    "Falcon-H1-1.5B": ("1, 48, 256, 64, 3", 0),
    "Falcon-H1-34B": ("2, 32, 256, 128, 3", 0),
}
MOST_SPILLED = 256  # bytes, of what is outside of loops, or of tests in float32


@pytest.mark.parametrize(("sizes", "groups"), MODELS.values(), ids=MODELS)
def test_a_step_holds_parts_of_states_in_registers(sizes: str, groups: int) -> None:
    given = GIVEN.format(dtype="bfloat16", sequences=9, sizes=sizes, rates=1)
    call = OVERLAPPED + given + WEIGHTS.format(groups=groups) + STEP
    found = compiled("engine.kernels.gpu.mamba", call)
    assert found.keys() == {"_convolve", "_step", *(["_norm"] if groups else [])}
    for told in found.values():
        assert told["spilled"] == 0
        assert told["shared"] < SHARED_BYTES
        assert told["begins_early"] == told["waits"] == 1
        assert told["loads_before"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("sizes", "groups"), MODELS.values(), ids=MODELS)
def test_chunks_are_multiplied_by_tensor_cores(sizes: str, groups: int, dtype: str) -> None:
    given = GIVEN.format(dtype=dtype, sequences=2, sizes=sizes, rates=1)
    call = given + WEIGHTS.format(groups=groups) + CHUNKS
    found = compiled("engine.kernels.gpu.mamba_chunks", call)
    assert found.keys() == {"_convolve", "_keep_last", "_compare", "_carry", "_norm"}
    for told in found.values():
        assert told["spilled"] <= MOST_SPILLED
        assert told["shared"] < SHARED_BYTES
        assert told["narrow_stores"] == 0
    if dtype == "bfloat16":
        assert found["_carry"]["spills_in_loops"] == 0
        assert min(found["_carry"]["wgmma"], found["_compare"]["wgmma"]) > 0
