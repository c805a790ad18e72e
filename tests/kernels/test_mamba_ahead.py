"""Mamba-2 layers compile for Hopper at the sizes of published models."""

import pytest

from tests.kernels.ahead import compiled
from tests.kernels.test_attention_ahead import SHARED_BYTES

GIVEN = """
from engine.kernels.contract import Chunks, Contexts
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape
shape, dtype, i32 = RecurrentShape({sizes}), torch.{dtype}, torch.int32
inputs = RecurrentInputs(
    torch.empty(9, shape.channels + shape.values, dtype=dtype),
    torch.empty(9, shape.value_heads, dtype=dtype),
)
states = LayerStates(
    torch.empty(3, shape.value_heads, shape.key_width, shape.value_width),
    torch.empty(3, shape.taps, shape.channels), 0,
)
norm = torch.empty(shape.values, dtype=dtype) if {groups} else None
weights = MambaWeights(
    shape, torch.empty(shape.channels, shape.taps + 1, dtype=dtype),
    torch.empty(shape.channels), torch.empty(shape.value_heads),
    torch.empty(shape.value_heads), torch.empty(shape.value_heads), norm, {groups}, 1e-5,
)
contexts = Contexts(torch.empty({sequences}, 4, dtype=i32), torch.empty({sequences}, dtype=i32))
"""
STEP = "mamba_step(inputs, states, contexts, weights)"
CHUNKS = """
chunks = Chunks(torch.empty({sequences} + 1, dtype=i32), 9)
mamba_chunks(inputs, states, contexts, chunks, weights)
"""
OVERLAPPED = """
from engine.kernels.gpu.overlapping import overlap_launches
overlap_launches(on=True)
"""
MODELS = {
    "Nemotron-3-Nano-30B-A3B": ("8, 64, 128, 64, 3", 8),
    "Granite-4.0-H-Small": ("1, 128, 128, 64, 3", 1),
    "Falcon-H1-34B": ("2, 32, 256, 128, 3", 0),
}
MOST_SPILLED = 256  # bytes, of what is outside of loops, or of tests in float32


@pytest.mark.parametrize(("sizes", "groups"), MODELS.values(), ids=MODELS)
def test_a_step_holds_parts_of_states_in_registers(sizes: str, groups: int) -> None:
    given = GIVEN.format(dtype="bfloat16", sequences=9, sizes=sizes, groups=groups)
    found = compiled("engine.kernels.gpu.mamba", OVERLAPPED + given + STEP)
    assert found.keys() == {"_convolve", "_step", *(["_norm"] if groups else [])}
    for told in found.values():
        assert told["spilled"] == 0
        assert told["shared"] < SHARED_BYTES
        assert told["begins_early"] == told["waits"] == 1
        assert told["loads_before"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("sizes", "groups"), MODELS.values(), ids=MODELS)
def test_chunks_are_multiplied_by_tensor_cores(sizes: str, groups: int, dtype: str) -> None:
    call = (GIVEN + CHUNKS).format(dtype=dtype, sequences=2, sizes=sizes, groups=groups)
    found = compiled("engine.kernels.gpu.mamba_chunks", call)
    assert found.keys() == {"_convolve", "_keep_last", "_compare", "_carry", "_norm"}
    for told in found.values():
        assert told["spilled"] <= MOST_SPILLED
        assert told["shared"] < SHARED_BYTES
        assert told["narrow_stores"] == 0
    if dtype == "bfloat16":
        assert found["_carry"]["spills_in_loops"] == 0
        assert min(found["_carry"]["wgmma"], found["_compare"]["wgmma"]) > 0
