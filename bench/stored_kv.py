"""`python -m bench.stored_kv`: attention over KV in fp8, beside that over bfloat16, on a CPU.

One layer of Llama-3.1-8B's shape, by the compiled kernels: a decode step of eight sequences,
and a chunk of a prompt, in blocks that lie in no order. Both kinds of KV take turns in one
process; medians are printed. The floor of the decode step is its bytes of KV, at the rate at
which torch copies as many bytes of memory in the same run, reads and writes counted.
"""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.kernels.cpu.native import open_kernels
from engine.kernels.rows import E4M3
from engine.kernels.style import AttentionStyle

HEADS, WIDTH, BLOCK = 32, 128, 16
KV = KvShape(1, 8, WIDTH)
LENGTH, SEQUENCES, CHUNK, RUNS = 4096, 8, 256, 25
STORED = None, E4M3
MS = 1e3


class Medians(NamedTuple):
    """Seconds of a batch over bfloat16 and over fp8, and of a copy of the first one's bytes."""

    wide_s: float
    fp8_s: float
    copy_s: float


@torch.inference_mode()
def main(length: int = LENGTH, runs: int = RUNS) -> None:
    """Print both batches' times, with one thread and with all."""
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        for name, asked in (("decode step", 1), ("chunk", min(CHUNK, length))):
            times = measure(length, asked, runs)
            floors = times.copy_s / 2, times.copy_s / 4
            sys.stdout.write(
                f"{threads} threads, {name}: bfloat16 {times.wide_s * MS:.2f} ms, "
                f"fp8 {times.fp8_s * MS:.2f} ms, {times.fp8_s / times.wide_s:.2f} of it"
            )
            if asked == 1:
                sys.stdout.write(f"; floors {floors[0] * MS:.2f} and {floors[1] * MS:.2f} ms")
            sys.stdout.write("\n")


def measure(length: int, asked: int, runs: int) -> Medians:
    """Batches of the last `asked` tokens of sequences of this length, over random KV."""
    sequences = SEQUENCES if asked == 1 else 1
    wide, fp8 = (_batch(sequences, length, asked, stored) for stored in STORED)
    queries = torch.randn(sequences * asked, HEADS, WIDTH).bfloat16()
    style = AttentionStyle(WIDTH**-0.5)
    source = wide.memory.block_rows
    target = torch.empty_like(source)
    work: list[Callable[[], Tensor]] = [
        lambda: wide.attend(0, style, queries),
        lambda: fp8.attend(0, style, queries),
        lambda: target.copy_(source),
    ]
    times = [[_seconds(one) for one in work] for _ in range(runs)]
    return Medians(*(sorted(each)[runs // 2] for each in zip(*times, strict=True)))


def _batch(
    sequences: int, length: int, asked: int, stored: torch.dtype | None
) -> AttentionBatch:
    each = -(-length // BLOCK)
    shape = KvShape(KV.layers, KV.heads, KV.width, stored=stored)
    kernels, cpu = open_kernels("native"), torch.device("cpu")
    memory = KvMemory(shape, sequences * each, BLOCK, torch.bfloat16, cpu, kernels)
    numbers = torch.randn(memory.block_rows.shape)
    memory.block_rows.copy_(numbers.to(memory.block_rows.dtype))
    blocks = torch.randperm(memory.num_blocks).view(sequences, each).tolist()
    spans = [Span(length - asked, asked, ours) for ours in blocks]
    return AttentionBatch(memory, *((spans, []) if asked == 1 else ([], spans)))


def _seconds(work: Callable[[], Tensor]) -> float:
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


if __name__ == "__main__":
    main()
