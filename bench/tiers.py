"""`python -m bench.tiers [tiny|0.5b] [PROMPT]`: first token of an evicted prompt.

The prompt's KV is computed anew, copied back from host memory, or read back from disk (mostly
from the page cache): one engine on one thread, with the ways in turn in each run. KV memory has
room for little more than one prompt, so other prompts evict it. The last block is always
computed.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch

from bench.checkpoint import write_checkpoint
from bench.engine.work import SHAPES
from engine.loading import load_engine
from engine.request import Request, RequestId, Sampling
from engine.settings import EngineConfig
from engine.tiers.book import TierBook
from engine.tiers.disk_book import DiskBook
from engine.tiers.disk_thread import DiskThread
from engine.tiers.host_book import HostBook
from engine.tiers.host_memory import HostMemory
from engine.tiers.slab import PAGE, Slab
from engine.tiers.tiers import Tiers
from engine.torch_engine import TorchEngine

PROMPT = 512
RUNS = 5
BLOCK = 16
OTHERS = 3  # prompts; they fill KV memory and host memory together
MS, US = 1e3, 1e6
ids = count()


def main() -> None:
    """Print a table."""
    name = sys.argv[1] if sys.argv[1:] else "tiny"
    length = int(sys.argv[2]) if sys.argv[2:] else PROMPT
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        model.mkdir()
        write_checkpoint(model, SHAPES[name], dtype=torch.bfloat16)
        engine = _engine(model, name, length)
        ways = _ways(engine, Path(folder, "kv"))
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for run in range(RUNS):
            for number, (way, tiers) in enumerate(ways.items()):
                engine.tiers = tiers
                engine.scheduler.sequences.kv.lower_tiers = tiers.book if tiers else None
                took, cached = _again(engine, length, 10 * (run * len(ways) + number))
                assert (cached > 0) == (tiers is not None), way
                seconds[way].append(took)
        _tell(seconds, length)


def _engine(model: Path, name: str, length: int) -> TorchEngine:
    """An engine with blocks for one prompt and two more."""
    one = SHAPES[name]
    width = 2 * one.num_hidden_layers * one.num_key_value_heads * one.head_dim
    size, blocks = BLOCK * width * torch.bfloat16.itemsize, -(-(length + 2) // BLOCK)
    sys.stdout.write(f"{name}: {length} tokens, {blocks} blocks of {size >> 10} KiB\n")
    config = EngineConfig(
        model=str(model),
        max_model_len=length + 4,
        max_num_seqs=4,
        threads=1,
        kv_cache_memory_bytes=(blocks + 2) * size,
    )
    return load_engine(config)


def _ways(engine: TorchEngine, folder: Path) -> dict[str, Tiers | None]:
    blocks, block_bytes = engine.memory.num_blocks, engine.kv_regions[0].block_bytes
    slab = Slab.open(folder, "bench", block_bytes, 64 * blocks * (block_bytes + PAGE))
    return {
        "computed": None,
        "host memory": _tiers(engine, 4 * blocks, None),
        "disk": _tiers(engine, 2 * blocks, slab),
    }


def _tiers(engine: TorchEngine, slots: int, slab: Slab | None) -> Tiers:
    host = HostMemory(engine.memory.bytes_of_blocks, slots)
    book = TierBook(HostBook(slots), engine.kv_regions[0].block_bytes)
    disk = None
    if slab is not None:
        book.add_disk(DiskBook(slab.places))
        disk = DiskThread(slab, host)
    return Tiers(book, host, disk, time.monotonic)


def _again(engine: TorchEngine, length: int, run: int) -> tuple[float, int]:
    """Run a prompt, let others evict it, rerun it: seconds to first token, cached tokens."""
    _first_token(engine, length, run)
    for other in range(OTHERS):
        _first_token(engine, length, run + 1 + other)
    return _first_token(engine, length, run)


def _first_token(engine: TorchEngine, length: int, seed: int) -> tuple[float, int]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 8000, (length,), generator=generator).tolist()
    asked = Request(RequestId(str(next(ids))), tuple(tokens), Sampling(1, temperature=0))
    begin, cached = time.perf_counter(), 0
    engine.generate(asked)
    for admitted, done in _turns(engine):
        cached += admitted
        if done:
            break
    return time.perf_counter() - begin, cached


def _turns(engine: TorchEngine) -> Iterator[tuple[int, bool]]:
    """Step as a node does: while it waits for the disk, it polls once a millisecond."""
    while True:
        cached = sum(one.cached_tokens for one in engine.schedule())
        yield cached, bool(engine.step().sampled)
        if engine.load.fetching:
            time.sleep(1 / MS)


def _tell(seconds: dict[str, list[float]], length: int) -> None:
    anew = statistics.median(seconds["computed"])
    for way, took in seconds.items():
        middle, low, high = statistics.median(took), min(took), max(took)
        sys.stdout.write(
            f"{way:12} {middle * MS:9.2f} ms ({low * MS:.2f} .. {high * MS:.2f}), "
            f"{middle * US / length:8.2f} us a token, {anew / middle:6.1f} times as fast\n"
        )


if __name__ == "__main__":
    main()
