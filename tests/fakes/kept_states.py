"""Memory full of states at random, and spans whose states lie in it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory, KvShape, StateShape
from engine.attention.paged import Span
from engine.attention.recurrence import SpanRecurrence
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape, RecurrentWeights

LAYERS, LAYER = 4, 3  # the second one in the second of a sequence's blocks


def memory_of(
    net: RecurrentShape, sequences: int, dtype: torch.dtype, kernels: CpuKernels | None
) -> KvMemory:
    """Two layers' states in a block; numbers at random."""
    state = StateShape(LAYERS, net)
    size = -(-2 * state.layer_bytes // (2 * 8 * dtype.itemsize))
    kept, cpu = KvShape(1, 1, 8, state=state), torch.device("cpu")
    memory = KvMemory(kept, 2 * sequences + 1, size, dtype, cpu, kernels)
    memory.bytes_of_blocks.view(torch.float32).normal_()
    return memory


def like(memory: KvMemory, kernels: CpuKernels | None) -> KvMemory:
    """Another memory with the same contents."""
    made = KvMemory(
        memory.shape,
        memory.num_blocks,
        memory.block_size,
        memory.dtype,
        memory.block_rows.device,
        kernels,
    )
    made.bytes_of_blocks.copy_(memory.bytes_of_blocks)
    return made


def spans_of(described: Sequence[tuple[int, int]], first: int = 0) -> list[Span]:
    """Spans from these positions, so long; two state blocks each, the later first."""
    return [
        Span(start, length, [0] * 99, state=(2 * place + 2, 2 * place + 1))
        for place, (start, length) in enumerate(described, first)
    ]


def run(
    memory: KvMemory, spans: Sequence[Span], weights: RecurrentWeights, inputs: RecurrentInputs
) -> Tensor:
    """By the memory's kernels, if it has some; spans of one token first."""
    singles = [span for span in spans if span.length == 1]
    chunks = [span for span in spans if span.length > 1]
    batch = SpanRecurrence(memory.kernels, singles, chunks)
    return batch.recurrence(memory.states(LAYER), weights, inputs)


def close(ours: Tensor, exact: Tensor, tolerance: float) -> bool:
    """Whether no number is farther away than this share of the largest."""
    error = (ours.double() - exact).abs().max() / exact.abs().max()
    return bool(error < tolerance)


def alike(memory: KvMemory, other: KvMemory, spans: Sequence[Span]) -> bool:
    """Whether the spans' states are, but for rounding; and all else is, to the bit."""
    memory, other = like(memory, None), like(other, None)
    blocks = [span.state[memory.states(LAYER).place] for span in spans]
    for one, same in zip(memory.states(LAYER)[:2], other.states(LAYER)[:2], strict=True):
        if one.numel() and not close(one[blocks], same[blocks].double(), 1e-5):
            return False
        one[blocks] = same[blocks] = 0
    return torch.equal(memory.bytes_of_blocks, other.bytes_of_blocks)
