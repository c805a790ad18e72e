"""`python -m bench.recurrent_nets`: layers that keep a state, on a CPU, beside floor and twin.

The sizes are those of published models: a gated delta net, Mamba-2 with one key head, with
several, and without a norm, and a gated short convolution. A decode step is one token of each
sequence, through several layers, as in a model: states are not in a cache when a layer comes to
them. The kernel, plain torch, and torch's copy of as many bytes as states have take turns in
one process; medians of a layer's time are printed. The copy is a decode step's floor: states
are read and written once. A chunk of a prompt computes, and has none.

`python -m bench.recurrent_nets granite` measures one of NETS alone.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory, KvShape, StateShape
from engine.attention.paged import Span
from engine.attention.recurrence import SpanRecurrence
from engine.kernels.cpu.native import open_kernels
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape, RecurrentWeights
from engine.kernels.short_convolution import ConvolutionWeights

LAYERS, RUNS, SEQUENCES, CHUNK = 12, 9, (1, 8), 512
DTYPE = torch.bfloat16
MS = 1e3


class Medians(NamedTuple):
    """Seconds of a layer by the kernel and in plain torch, and of a copy of its states."""

    kernel_s: float
    twin_s: float
    copy_s: float


class Net(NamedTuple):
    """A layer's weights, and how many rates a token has."""

    weights: RecurrentWeights
    rates: int


def delta_net(net: RecurrentShape) -> Net:
    """A gated delta net of these sizes."""
    heads, convolution = net.value_heads, torch.randn(net.channels, net.taps + 1)
    decay, offset = -torch.ones(heads), torch.zeros(heads)
    norm = torch.ones(net.value_width)
    return Net(DeltaWeights(net, convolution, decay, offset, norm, 1e-6), 2 * heads)


def mamba(net: RecurrentShape, norm_groups: int | None) -> Net:
    """Mamba-2 of these sizes, without a norm if there are no groups."""
    heads, convolution = net.value_heads, torch.randn(net.channels, net.taps + 1)
    bias, norm = torch.zeros(net.channels), torch.ones(net.values)
    weights = MambaWeights(
        net,
        convolution,
        bias,
        decay=-torch.ones(heads),
        offset=torch.full((heads,), -3.0),
        skip=torch.ones(heads),
        norm=None if norm_groups is None else norm,
        norm_groups=norm_groups or 1,
        eps=1e-5,
    )
    return Net(weights, heads)


def convolution(channels: int) -> Net:
    """A gated short convolution over three tokens."""
    net = RecurrentShape(channels, channels, 0, 1, 2)
    return Net(ConvolutionWeights(net, torch.randn(channels, 3), None), channels)


NETS: dict[str, Callable[[], Net]] = {
    "qwen3-next": lambda: delta_net(RecurrentShape(16, 32, 128, 128, 3)),
    "nemotron": lambda: mamba(RecurrentShape(8, 64, 128, 64, 3), 8),  # 3 Nano
    "granite": lambda: mamba(RecurrentShape(1, 128, 128, 64, 3), 1),  # 4.0-H Small
    "falcon": lambda: mamba(RecurrentShape(2, 32, 256, 128, 3), None),  # H1
    "lfm2": lambda: convolution(2048),  # 1.2B
}


@torch.inference_mode()
def main(names: Sequence[str], layers: int = LAYERS, chunk: int = CHUNK) -> None:
    """Print all batches' times, with one thread and with all."""
    for name in names or NETS:
        net = NETS[name]()
        for threads in sorted({1, torch.get_num_threads()}):
            torch.set_num_threads(threads)
            for sequences, length in (*((some, 1) for some in SEQUENCES), (1, chunk)):
                times = measure(net, layers, sequences, length)
                sys.stdout.write(
                    f"{name}, {threads} threads, {sequences} times {length} tokens: "
                    f"kernel {times.kernel_s * MS:.3f} ms, twin {times.twin_s * MS:.3f} ms"
                )
                if length == 1:
                    share = times.copy_s / times.kernel_s
                    sys.stdout.write(f"; floor {times.copy_s * MS:.3f} ms, {share:.0%} of it")
                sys.stdout.write("\n")


def measure(net: Net, layers: int, sequences: int, length: int) -> Medians:
    """The next `length` tokens of so many sequences, through all layers."""
    weights, sizes = net.weights, net.weights.shape
    state = StateShape(layers, sizes)
    shape, cpu = KvShape(1, 1, 32, state=state), torch.device("cpu")
    size = -(-layers * state.layer_bytes // shape.token_bytes(DTYPE))
    memory = KvMemory(shape, sequences, size, DTYPE, cpu, open_kernels("native"))
    memory.bytes_of_blocks.view(torch.float32).normal_()
    spans = [Span(99, length, (), state=[block]) for block in range(sequences)]
    batch = ([], spans) if length > 1 else (spans, [])
    kernel, twin = SpanRecurrence(memory.kernels, *batch), SpanRecurrence(None, *batch)
    mixed = torch.randn(sequences * length, sizes.channels + sizes.values).to(DTYPE)
    inputs = RecurrentInputs(mixed, torch.randn(len(mixed), net.rates).to(DTYPE))
    target = torch.empty(sequences, sizes.numbers)
    numbers = memory.bytes_of_blocks.view(torch.float32)
    each = state.layer_bytes // torch.float32.itemsize
    work: list[Callable[[int], Tensor]] = [
        lambda layer: kernel.recurrence(memory.states(layer), weights, inputs),
        lambda layer: twin.recurrence(memory.states(layer), weights, inputs),
        lambda layer: target.copy_(numbers[:, layer * each : layer * each + sizes.numbers]),
    ]
    times = [[_seconds(one, layers) for one in work] for _ in range(RUNS)]
    return Medians(*(sorted(each)[RUNS // 2] for each in zip(*times, strict=True)))


def _seconds(work: Callable[[int], Tensor], layers: int) -> float:
    since = time.perf_counter()
    for layer in range(layers):
        work(layer)
    return (time.perf_counter() - since) / layers


if __name__ == "__main__":
    main(sys.argv[1:])
