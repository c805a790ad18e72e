"""`python -m bench.latents`: attention of prompts over latents, in both ways, beside its floor.

The sizes are DeepSeek-V2-Lite's, of one layer's attention without the products around it: keys
and values are made for the chunk, or it attends to the latents as they are stored. Both run in
turns, in one process, on all cores; the best times are printed. The floor is the operations of
a way, at the rate of torch's float32 product of 2048 by 2048 by 2048 in the same run.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.latents import HostChunk, LatentSizes
from engine.attention.paged import Span
from engine.kernels.cpu.native import open_kernels
from engine.kernels.style import AttentionStyle
from engine.models.latent_heads import LatentHeads

HEADS, RANK, ROPE, PLAIN, VALUE = 16, 512, 64, 128, 128
SIZES = LatentSizes(RANK, ROPE, PLAIN, VALUE)
BLOCK, RUNS, SIDE, PRODUCTS = 16, 3, 2048, 20
CHUNKS = ((0, 64), (0, 256), (0, 1024), (0, 4096), (2048, 64), (2048, 256), (7680, 512))
DTYPES = torch.float32, torch.bfloat16
MS = 1e3


class Times(NamedTuple):
    """The best seconds of a chunk, and its distance from the other way."""

    absorbed_s: float
    expanded_s: float
    error: float


@torch.inference_mode()
def main(chunks: Sequence[tuple[int, int]] = CHUNKS) -> None:
    """Print each chunk's times."""
    rate = _rate()
    sys.stdout.write(f"products of float32: {rate / 1e9:.0f} GFLOP/s\n")
    for dtype in DTYPES:
        for start, length in chunks:
            times = measure(Span(start, length, range(-(-(start + length) // BLOCK))), dtype)
            _say(dtype, start, length, times, rate)


def measure(span: Span, dtype: torch.dtype) -> Times:
    """Run a chunk in both ways, over random latents."""
    shape = KvShape(1, 1, RANK + ROPE, parts=1, value_width=RANK)
    kernels, cpu = open_kernels("auto"), torch.device("cpu")
    memory = KvMemory(shape, len(span.blocks), BLOCK, dtype, cpu, kernels)
    memory.block_rows.normal_()
    keys, values = torch.randn(HEADS, PLAIN, RANK), torch.randn(HEADS, RANK, VALUE)
    heads = LatentHeads((keys / RANK**0.5).to(dtype), (values / RANK**0.5).to(dtype), ROPE)
    queries = torch.randn(span.length, HEADS, PLAIN + ROPE).to(dtype)
    style, batch = AttentionStyle((PLAIN + ROPE) ** -0.5), AttentionBatch(memory, (), [span])

    def absorbed() -> Tensor:
        asked = heads.absorb(queries[..., :PLAIN])
        asked[..., RANK:] = queries[..., PLAIN:]
        return heads.values_of(batch.attend(0, style, asked))

    def expanded() -> Tensor:
        chunk = HostChunk(memory, span)
        made = heads.expand(chunk.latents(0), slice(0, HEADS))
        return chunk.attend(style, queries, made, VALUE)

    one, other = absorbed().float(), expanded().float()
    pairs = [(_seconds(absorbed), _seconds(expanded)) for _ in range(RUNS)]
    best, best_expanded = (min(times) for times in zip(*pairs, strict=True))
    return Times(best, best_expanded, float((one - other).norm() / one.norm()))


def _seconds(work: Callable[[], Tensor]) -> float:
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


def _rate() -> float:
    """Operations per second of a large product."""
    side = torch.randn(SIDE, SIDE)
    return 2 * SIDE**3 / min(_seconds(lambda: side @ side) for _ in range(PRODUCTS))


def _say(dtype: torch.dtype, start: int, length: int, times: Times, rate: float) -> None:
    span = Span(start, length, ())
    absorbed, expanded = (HEADS * SIZES.operations(span, expanded=one) for one in (False, True))
    sys.stdout.write(
        f"{str(dtype).removeprefix('torch.')}, {length} tokens behind {start}: "
        f"latents {times.absorbed_s * MS:.1f} ms (floor {absorbed / rate * MS:.1f}), "
        f"expanded {times.expanded_s * MS:.1f} ms (floor {expanded / rate * MS:.1f}), "
        f"{times.absorbed_s / times.expanded_s:.2f} times as fast; "
        f"they differ by {times.error:.1e}\n"
    )


if __name__ == "__main__":
    main()
