"""`python -m bench.delta_nets`: gated delta nets on a CPU, beside their floor and their twin.

The sizes are Qwen3-Next's: 32 value heads of 128 by 128, 16 key heads. A decode step is one
token of each sequence, through several layers, as in a model: states are not in a cache when a
layer comes to them. The kernel, plain torch, and torch's copy of as many bytes as states have
take turns in one process; medians of a layer's time are printed. The copy is a decode step's
floor: states are read and written once. A chunk of a prompt computes, and has none.
"""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory, KvShape, StateShape
from engine.attention.paged import Span
from engine.attention.recurrence import SpanRecurrence
from engine.kernels.cpu.native import open_kernels
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape

NET = RecurrentShape(16, 32, 128, 128, 3)
LAYERS, RUNS, SEQUENCES, CHUNK = 12, 9, (1, 8), 512
DTYPE = torch.bfloat16
MS = 1e3


class Medians(NamedTuple):
    """Seconds of a layer by the kernel and in plain torch, and of a copy of its states."""

    kernel_s: float
    twin_s: float
    copy_s: float


@torch.inference_mode()
def main(net: RecurrentShape = NET, layers: int = LAYERS, chunk: int = CHUNK) -> None:
    """Print all batches' times, with one thread and with all."""
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        for sequences, length in (*((some, 1) for some in SEQUENCES), (1, chunk)):
            times = measure(net, layers, sequences, length)
            sys.stdout.write(
                f"{threads} threads, {sequences} times {length} tokens: "
                f"kernel {times.kernel_s * MS:.3f} ms, twin {times.twin_s * MS:.3f} ms"
            )
            if length == 1:
                share = times.copy_s / times.kernel_s
                sys.stdout.write(f"; floor {times.copy_s * MS:.3f} ms, {share:.0%} of it")
            sys.stdout.write("\n")


def measure(net: RecurrentShape, layers: int, sequences: int, length: int) -> Medians:
    """The next `length` tokens of so many sequences, through all layers."""
    state = StateShape(layers, net)
    shape, cpu = KvShape(1, 1, 32, state=state), torch.device("cpu")
    size = -(-layers * state.layer_bytes // shape.token_bytes(DTYPE))
    memory = KvMemory(shape, sequences, size, DTYPE, cpu, open_kernels("native"))
    memory.bytes_of_blocks.view(torch.float32).normal_()
    spans = [Span(99, length, (), state=[block]) for block in range(sequences)]
    batch = ([], spans) if length > 1 else (spans, [])
    kernel, twin = SpanRecurrence(memory.kernels, *batch), SpanRecurrence(None, *batch)
    mixed = torch.randn(sequences * length, net.channels + net.values).to(DTYPE)
    inputs = RecurrentInputs(mixed, torch.randn(len(mixed), 2 * net.value_heads).to(DTYPE))
    weights, target = _weights(net), torch.empty_like(memory.states(0).memory)
    work: list[Callable[[int], Tensor]] = [
        lambda layer: kernel.recurrence(memory.states(layer), weights, inputs),
        lambda layer: twin.recurrence(memory.states(layer), weights, inputs),
        lambda layer: target.copy_(memory.states(layer).memory),
    ]
    times = [[_seconds(one, layers) for one in work] for _ in range(RUNS)]
    return Medians(*(sorted(each)[RUNS // 2] for each in zip(*times, strict=True)))


def _weights(net: RecurrentShape) -> DeltaWeights:
    heads, convolution = net.value_heads, torch.randn(net.channels, net.taps + 1)
    norm = torch.ones(net.value_width)
    return DeltaWeights(net, convolution, -torch.ones(heads), torch.zeros(heads), norm, 1e-6)


def _seconds(work: Callable[[int], Tensor], layers: int) -> float:
    since = time.perf_counter()
    for layer in range(layers):
        work(layer)
    return (time.perf_counter() - since) / layers


if __name__ == "__main__":
    main()
