"""Text of calls of kernels for layers that keep a state, to be compiled ahead."""

GIVEN = """
from engine.kernels.contract import Chunks, Contexts
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape
shape, dtype, i32 = RecurrentShape({sizes}), torch.{dtype}, torch.int32
inputs = RecurrentInputs(
    torch.empty(9, shape.channels + shape.values, dtype=dtype),
    torch.empty(9, {rates} * shape.value_heads, dtype=dtype),
)
states = LayerStates(
    torch.empty(3, shape.value_heads, shape.key_width, shape.value_width),
    torch.empty(3, shape.taps, shape.channels), 0,
)
contexts = Contexts(torch.empty({sequences}, 4, dtype=i32), torch.empty({sequences}, dtype=i32))
chunks = Chunks(torch.empty({sequences} + 1, dtype=i32), 9)
convolution = torch.empty(shape.channels, shape.taps + 1, dtype=dtype)
of_heads = torch.empty(shape.value_heads)
"""
OVERLAPPED = """
from engine.kernels.gpu.overlapping import overlap_launches
overlap_launches(on=True)
"""
