"""Gated short convolutions compile for Hopper at the sizes of published models."""

import pytest

from tests.kernels.ahead import compiled
from tests.kernels.recurrent_calls import GIVEN, OVERLAPPED

WEIGHTS = """
from engine.kernels.short_convolution import ConvolutionWeights
weights = ConvolutionWeights(shape, convolution, {bias})
"""
MODULE = "engine.kernels.gpu.short_convolution"
PUBLISHED, LONG = "2048, 2048, 0, 1, 2", "2048, 2048, 0, 1, 63"


@pytest.mark.parametrize("sizes", [PUBLISHED, LONG])
@pytest.mark.parametrize("bias", ["None", "torch.empty(shape.channels)"])
def test_a_step_is_one_launch(sizes: str, bias: str) -> None:
    given = GIVEN.format(dtype="bfloat16", sequences=9, sizes=sizes, rates=1)
    step = "convolution_step(inputs, states, contexts, weights)"
    found = compiled(MODULE, OVERLAPPED + given + WEIGHTS.format(bias=bias) + step)
    assert found.keys() == {"_step"}
    assert found["_step"]["spilled"] == 0
    assert found["_step"]["begins_early"] == found["_step"]["waits"] == 1
    assert found["_step"]["loads_before"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_chunks_are_two(dtype: str) -> None:
    given = GIVEN.format(dtype=dtype, sequences=2, sizes=PUBLISHED, rates=1)
    chunks = "convolution_chunks(inputs, states, contexts, chunks, weights)"
    found = compiled(MODULE, given + WEIGHTS.format(bias="None") + chunks)
    assert found.keys() == {"_convolve", "_keep_last"}
    for told in found.values():
        assert told["spilled"] == 0
        assert told["narrow_stores"] == 0
