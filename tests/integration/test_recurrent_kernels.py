"""Compiled nets that keep a state say what plain torch says, and what their formulas say."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory
from engine.kernels.cpu.library import RecordedCalls
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape
from tests.fakes.kept_states import LAYER, alike, close, like, memory_of, run, spans_of
from tests.fakes.recurrent_formulas import (
    Formula,
    convolution,
    delta_net,
    inputs_of,
    mamba,
    one_by_one,
)

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.01, torch.float16: 2e-3}
NETS: dict[str, Callable[..., Formula]] = {
    "delta": partial(delta_net, RecurrentShape(2, 4, 128, 128, 3)),
    "delta alone": partial(delta_net, RecurrentShape(3, 3, 32, 64, 3)),
    "delta odd": partial(delta_net, RecurrentShape(2, 6, 21, 37, 2)),
    "delta small": partial(delta_net, RecurrentShape(1, 2, 5, 7, 1)),
    "delta wide": partial(delta_net, RecurrentShape(1, 1, 24, 345, 4)),
    "delta without a convolution": partial(delta_net, RecurrentShape(1, 3, 16, 16, 0)),
    "mamba": partial(mamba, RecurrentShape(1, 20, 128, 64, 3), 1),
    "mamba groups": partial(mamba, RecurrentShape(2, 8, 96, 64, 3), 4),
    "mamba no norm": partial(mamba, RecurrentShape(2, 6, 32, 128, 3), None),
    "mamba odd": partial(mamba, RecurrentShape(2, 6, 21, 37, 2), 3),
    "mamba small": partial(mamba, RecurrentShape(1, 2, 5, 7, 1), 1),
    "mamba wide": partial(mamba, RecurrentShape(3, 3, 24, 345, 4), 5),
    "mamba without a convolution": partial(mamba, RecurrentShape(3, 3, 16, 16, 0), 1),
    "convolution": partial(convolution, 256, 2),
    "convolution odd": partial(convolution, 151, 3),
    "convolution small": partial(convolution, 3, 1),
    "convolution long": partial(convolution, 130, 63),
}
CONVOLUTION = "convolution odd"
SINGLES, CHUNKS = (0, 1, 50), ((0, 2), (0, 33), (3, 40), (40, 32))


def states_at(memory: KvMemory, blocks: Sequence[int]) -> list[Tensor]:
    return [one[list(blocks)] for one in memory.states(LAYER)[:2]]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("of", ["singles", "all"])
def test_it_is_its_twin_and_its_formula(
    of: str, net: str, dtype: torch.dtype, kernels: CpuKernels
) -> None:
    told = [(start, 1) for start in SINGLES]
    told += CHUNKS if of == "all" else ()
    formula = NETS[net](dtype, wide=of == "all")
    memory, spans = memory_of(formula.shape, len(told), dtype, kernels), spans_of(told)
    twin, exact, weights = like(memory, None), like(memory, None), formula.weights
    inputs = inputs_of(formula, sum(length for _, length in told), dtype)
    output = run(memory, spans, weights, inputs)
    assert (output.dtype, output.shape) == (dtype, (len(inputs.mixed), formula.shape.values))
    assert close(output, one_by_one(exact, spans, formula, inputs), TOLERANCE[dtype])
    assert close(output, run(twin, spans, weights, inputs).double(), 2 * TOLERANCE[dtype])
    assert alike(memory, exact, spans)
    assert alike(memory, twin, spans)


@pytest.mark.parametrize("net", ["delta", "delta odd", "mamba", "mamba odd", CONVOLUTION])
def test_who_begins_sees_nothing_of_a_block(net: str, kernels: CpuKernels) -> None:
    """Not even if it is no number."""
    formula, spans = NETS[net](torch.float32), spans_of([(0, 1), (0, 40)])
    memory = memory_of(formula.shape, 2, torch.float32, kernels)
    clear = like(memory, kernels)
    memory.bytes_of_blocks.view(torch.float32).fill_(torch.nan)
    inputs = inputs_of(formula, 41, torch.float32)
    assert torch.equal(*(run(one, spans, formula.weights, inputs) for one in (memory, clear)))
    ours = states_at(memory, (1, 3)), states_at(clear, (1, 3))
    assert all(torch.equal(one, same) for one, same in zip(*ours, strict=True))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("net", NETS)
def test_however_a_prompt_is_cut_it_is_the_same_to_the_bit(
    net: str, dtype: torch.dtype, kernels: CpuKernels
) -> None:
    cuts, formula = [0, *accumulate((1, 1, 31, 2, 32, 33, 3, 40))], NETS[net](dtype)
    whole, weights = memory_of(formula.shape, 3, dtype, kernels), formula.weights
    parts, inputs = like(whole, kernels), inputs_of(formula, cuts[-1], dtype)
    expected = run(whole, spans_of([(0, cuts[-1])], 1), weights, inputs)
    for first, last in pairwise(cuts):
        spans = spans_of([(first, last - first)], 1)
        ours = RecurrentInputs(*(one[first:last] for one in inputs))
        if last - first > 1:  # beside others
            spans += spans_of([(9, 50)])
            ours = RecurrentInputs(*(torch.cat((one, one[:1].expand(50, -1))) for one in ours))
        output = run(parts, spans, weights, ours)[: last - first]
        assert torch.equal(output, expected[first:last])
    kept = states_at(whole, [3]), states_at(parts, [3])
    assert all(torch.equal(one, same) for one, same in zip(*kept, strict=True))


@pytest.mark.parametrize(
    "net", ["delta", "mamba", "mamba groups", "mamba no norm", CONVOLUTION]
)
@pytest.mark.parametrize("told", [[(9, 1)], [(3, 1), (0, 1), (9, 70), (0, 33), (5, 2)]])
def test_any_number_of_threads_says_the_same_to_the_bit(
    told: Sequence[tuple[int, int]], net: str, kernels: CpuKernels
) -> None:
    formula, spans = NETS[net](torch.bfloat16), spans_of(told)
    memory = memory_of(formula.shape, len(told), torch.bfloat16, kernels)
    inputs = inputs_of(formula, sum(length for _, length in told), torch.bfloat16)
    outputs, memories = list[Tensor](), [like(memory, kernels) for _ in range(3)]
    for count, ours in enumerate(memories, 1):
        with threads(count):
            outputs.append(run(ours, spans, formula.weights, inputs))
    for output, ours in zip(outputs[1:], memories[1:], strict=True):
        assert torch.equal(output, outputs[0])
        assert torch.equal(ours.bytes_of_blocks, memories[0].bytes_of_blocks)


@pytest.mark.parametrize(("net", "far"), [("delta alone", 1e4), ("mamba groups", 100)])
def test_numbers_far_out_stay_numbers(net: str, far: float, kernels: CpuKernels) -> None:
    formula, spans = NETS[net](torch.float32), spans_of([(0, 3)])
    memory = memory_of(formula.shape, 1, torch.float32, kernels)
    mixed, rates = inputs_of(formula, 3, torch.float32)
    inputs = RecurrentInputs(mixed * far, rates * 1e4)
    inputs.mixed[0] = 0
    exact, weights = like(memory, None), formula.weights
    output = run(memory, spans, weights, inputs)
    assert close(output, run(exact, spans, weights, inputs).double(), 1e-4)


def test_small_steps_are_precise(kernels: CpuKernels) -> None:
    """A step of 1e-6 is 1e-6, though 1 + 1e-6 is rounded: what remains of a state shows it."""
    formula, spans = NETS["mamba groups"](torch.float32), spans_of([(0, 40)])
    memory = memory_of(formula.shape, 1, torch.float32, kernels)
    inputs, exact = inputs_of(formula, 40, torch.float32), like(memory, None)
    assert isinstance(formula.weights, MambaWeights)
    inputs.rates.copy_(-13 - formula.weights.offset)
    run(memory, spans, formula.weights, inputs)
    one_by_one(exact, spans, formula, inputs)
    assert alike(memory, exact, spans)


@pytest.mark.parametrize("net", ["delta odd", "mamba odd", "mamba no norm", CONVOLUTION])
def test_recorded_steps_go_on_with_others(net: str, kernels: CpuKernels) -> None:
    formula, dtype = NETS[net](torch.bfloat16), torch.bfloat16
    memory, weights = memory_of(formula.shape, 4, dtype, kernels), formula.weights
    some, others = spans_of([(7, 1), (9, 1)]), spans_of([(3, 1), (30, 1)], 2)
    exact, inputs = like(memory, kernels), inputs_of(formula, 2, dtype)
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
