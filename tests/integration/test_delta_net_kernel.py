"""The compiled gated delta net says what plain torch says, and what its formula says."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape, StateShape
from engine.attention.paged import Span
from engine.attention.recurrence import SpanRecurrence
from engine.kernels.cpu.library import RecordedCalls
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.delta_net import SMALLEST, DeltaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.01, torch.float16: 2e-3}
SHAPES = {
    "whole": RecurrentShape(2, 4, 128, 128, 3),
    "alone": RecurrentShape(3, 3, 32, 64, 3),
    "odd": RecurrentShape(2, 6, 21, 37, 2),
    "small": RecurrentShape(1, 2, 5, 7, 1),
    "wide": RecurrentShape(1, 1, 24, 345, 4),
    "without a convolution": RecurrentShape(1, 3, 16, 16, 0),
}
SINGLES, CHUNKS = (0, 1, 50), ((0, 2), (0, 33), (3, 40), (40, 32))
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


def weights_of(net: RecurrentShape, dtype: torch.dtype, *, wide: bool = False) -> DeltaWeights:
    return DeltaWeights(
        net,
        torch.randn(net.channels, net.taps + 1).to(dtype),
        -torch.randn(net.value_heads).exp(),
        torch.randn(net.value_heads),
        (1 + torch.randn(net.value_width) / 4).to(torch.float32 if wide else dtype),
        1e-6,
    )


def inputs_of(net: RecurrentShape, tokens: int, dtype: torch.dtype) -> RecurrentInputs:
    """Views of wider rows."""
    mixed, rates = net.channels + net.values, 2 * net.value_heads
    return RecurrentInputs(
        torch.randn(tokens, mixed + 3).to(dtype)[:, :mixed],
        2 * torch.randn(tokens, rates + 1).to(dtype)[:, :rates],
    )


def one_by_one(
    memory: KvMemory, spans: Sequence[Span], weights: DeltaWeights, inputs: RecurrentInputs
) -> Tensor:
    """The formula in float64, token by token; states are changed as well."""
    states, row, read = memory.states(LAYER), 0, list[Tensor]()
    for span in spans:
        block, rows = span.state[states.place], slice(row, row + span.length)
        before, state = (one[block].double() for one in (states.inputs, states.memory))
        if not span.start:
            before, state = torch.zeros_like(before), torch.zeros_like(state)
        for mixed, rates in zip(*(one[rows].double() for one in inputs), strict=True):
            before = torch.cat((before, mixed[None, : weights.shape.channels]))
            one, state = _token(weights, before, rates, state)
            read.append(_gated(weights, one, mixed[weights.shape.channels :]))
            before = before[1:]
        states.inputs[block], states.memory[block] = before.float(), state.float()
        row += span.length
    return torch.stack(read)


def _token(
    weights: DeltaWeights, seen: Tensor, rates: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    net, read = weights.shape, list[Tensor]()
    mixed = (seen * weights.convolution.double().T).sum(0)
    mixed = mixed * mixed.sigmoid()
    queries, keys, values = mixed.split((net.keys, net.keys, net.values))
    decays = weights.decay * torch.log1p((rates[net.value_heads :] + weights.offset).exp())
    state = state.clone()
    for head in range(net.value_heads):
        shared = head * net.key_heads // net.value_heads
        query, key = (one.view(net.key_heads, -1)[shared] for one in (queries, keys))
        query, key = (one / (one.dot(one) + SMALLEST).sqrt() for one in (query, key))
        value = values[head * net.value_width : (head + 1) * net.value_width]
        ours = state[head] * decays[head].exp()
        ours += torch.outer(key, rates[head].sigmoid() * (value - ours.T @ key))
        read.append(ours.T @ query / net.key_width**0.5)
        state[head] = ours
    return torch.stack(read), state


def _gated(weights: DeltaWeights, read: Tensor, gates: Tensor) -> Tensor:
    normed = read / (read.square().mean(-1, keepdim=True) + weights.eps).sqrt()
    return (normed * weights.norm.double()).flatten() * gates * gates.sigmoid()


def run(
    memory: KvMemory, spans: Sequence[Span], weights: DeltaWeights, inputs: RecurrentInputs
) -> Tensor:
    singles = [span for span in spans if span.length == 1]
    chunks = [span for span in spans if span.length > 1]
    batch = SpanRecurrence(memory.kernels, singles, chunks)
    return batch.recurrence(memory.states(LAYER), weights, inputs)


def close(ours: Tensor, exact: Tensor, tolerance: float) -> bool:
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


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("of", ["singles", "all"])
def test_it_is_its_twin_and_its_formula(
    of: str, shape: str, dtype: torch.dtype, kernels: CpuKernels
) -> None:
    net, told = SHAPES[shape], [(start, 1) for start in SINGLES]
    told += CHUNKS if of == "all" else ()
    memory, spans = memory_of(net, len(told), dtype, kernels), spans_of(told)
    twin, exact = like(memory, None), like(memory, None)
    weights = weights_of(net, dtype, wide=of == "all")
    inputs = inputs_of(net, sum(length for _, length in told), dtype)
    output = run(memory, spans, weights, inputs)
    assert (output.dtype, output.shape) == (dtype, (len(inputs.mixed), net.values))
    formula = one_by_one(exact, spans, weights, inputs)
    assert close(output, formula, TOLERANCE[dtype])
    assert close(output, run(twin, spans, weights, inputs).double(), 2 * TOLERANCE[dtype])
    assert alike(memory, exact, spans)
    assert alike(memory, twin, spans)


@pytest.mark.parametrize("shape", ["whole", "odd"])
def test_who_begins_sees_nothing_of_a_block(shape: str, kernels: CpuKernels) -> None:
    """Not even if it is no number."""
    net, spans = SHAPES[shape], spans_of([(0, 1), (0, 40)])
    memory = memory_of(net, 2, torch.float32, kernels)
    clear = like(memory, kernels)
    memory.bytes_of_blocks.view(torch.float32).fill_(torch.nan)
    weights, inputs = weights_of(net, torch.float32), inputs_of(net, 41, torch.float32)
    assert torch.equal(*(run(one, spans, weights, inputs) for one in (memory, clear)))
    for one, same in zip(memory.states(LAYER)[:2], clear.states(LAYER)[:2], strict=True):
        assert torch.equal(one[[1, 3]], same[[1, 3]])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_however_a_prompt_is_cut_it_is_the_same_to_the_bit(
    shape: str, dtype: torch.dtype, kernels: CpuKernels
) -> None:
    net, cuts = SHAPES[shape], [0, *accumulate((1, 1, 31, 2, 32, 33, 3, 40))]
    whole = memory_of(net, 3, dtype, kernels)
    parts = like(whole, kernels)
    weights, inputs = weights_of(net, dtype), inputs_of(net, cuts[-1], dtype)
    expected = run(whole, spans_of([(0, cuts[-1])], 1), weights, inputs)
    for first, last in pairwise(cuts):
        spans = spans_of([(first, last - first)], 1)
        ours = RecurrentInputs(*(one[first:last] for one in inputs))
        if last - first > 1:  # beside others
            spans += spans_of([(9, 50)])
            ours = RecurrentInputs(*(torch.cat((one, one[:1].expand(50, -1))) for one in ours))
        output = run(parts, spans, weights, ours)[: last - first]
        assert torch.equal(output, expected[first:last])
    for one, same in zip(whole.states(LAYER)[:2], parts.states(LAYER)[:2], strict=True):
        assert torch.equal(one[3], same[3])


def test_numbers_far_out_stay_numbers(kernels: CpuKernels) -> None:
    net = SHAPES["alone"]
    memory, spans = memory_of(net, 1, torch.float32, kernels), spans_of([(0, 3)])
    mixed, rates = inputs_of(net, 3, torch.float32)
    inputs = RecurrentInputs(mixed * 1e4, rates * 1e4)
    inputs.mixed[0] = 0
    exact, weights = like(memory, None), weights_of(net, torch.float32)
    output = run(memory, spans, weights, inputs)
    assert close(output, run(exact, spans, weights, inputs).double(), 1e-4)


def test_recorded_steps_go_on_with_others(kernels: CpuKernels) -> None:
    net, dtype = SHAPES["odd"], torch.bfloat16
    memory, weights = memory_of(net, 4, dtype, kernels), weights_of(net, torch.bfloat16)
    some, others = spans_of([(7, 1), (9, 1)]), spans_of([(3, 1), (30, 1)], 2)
    exact, inputs = like(memory, kernels), inputs_of(net, 2, dtype)
    batch = AttentionBatch(memory, some, ())
    with torch.inference_mode():
        made, calls = kernels.record(lambda: batch.recurrence(LAYER, weights, inputs))
    assert isinstance(calls, RecordedCalls)
    assert torch.equal(made, run(exact, some, weights, inputs))
    for spans in (some, others, others):
        for one in inputs:
            one.normal_()
        batch.renew(spans)
        calls.replay()
        assert torch.equal(made, run(exact, spans, weights, inputs))
        assert torch.equal(memory.bytes_of_blocks, exact.bytes_of_blocks)
