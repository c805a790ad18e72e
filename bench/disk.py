"""`python -m bench.disk [FOLDER]`: ways to write KV blocks to a disk and read them back.

Blocks have the size of Qwen2.5-0.5B's, in one file of equal places. Warm: the file is in the
page cache. Cold: it was written back and dropped from the cache before each run, so that the
disk is read (except for mapped files, which cannot be dropped). The slab is what a node's tier
uses, including checksums of everything written and read.
"""

import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.tiers.slab import PAGE, Slab
from kv_transfer.movers.nixl_build import api

BLOCK_BYTES = 192 << 10
STRIDE = BLOCK_BYTES + PAGE
BATCHES = (1, 16, 256)
RUNS = 9
AGENT = "bench"
NIXL = {"nixl aio": "use_aio", "nixl uring": "use_uring", "nixl posix aio": "use_posix_aio"}
Blocks = NDArray[np.uint8]  # [blocks, BLOCK_BYTES]


class DiskPath(Protocol):
    """One way to write `blocks` to their places, and to read them back."""

    def write(self, count: int) -> None:
        """Write the first `count` blocks."""

    def read(self, count: int) -> None:
        """Read the first `count` blocks."""


class Plain:
    """`pwrite` and `pread`, one call for each block."""

    def __init__(self, blocks: Blocks, file: int) -> None:
        self.views, self.file = [block.data for block in blocks], file

    def write(self, count: int) -> None:
        """One block at a time."""
        for place in range(count):
            os.pwritev(self.file, [self.views[place]], place * STRIDE)

    def read(self, count: int) -> None:
        """One block at a time."""
        for place in range(count):
            os.preadv(self.file, [self.views[place]], place * STRIDE)


class Mapped:
    """Copies to and from the file's pages, mapped once."""

    def __init__(self, blocks: Blocks, file: int) -> None:
        pages = np.frombuffer(mmap.mmap(file, len(blocks) * STRIDE), dtype=np.uint8)
        self.blocks, self.places = blocks, pages.reshape(-1, STRIDE)[:, :BLOCK_BYTES]

    def write(self, count: int) -> None:
        """In one copy."""
        self.places[:count] = self.blocks[:count]

    def read(self, count: int) -> None:
        """In one copy."""
        self.blocks[:count] = self.places[:count]


class OverSlab:
    """A Slab, as in the disk tier."""

    def __init__(self, blocks: Blocks, folder: Path) -> None:
        self.views = [block.data for block in blocks]
        self.slab = Slab.open(folder, "bench", BLOCK_BYTES, len(blocks) * (STRIDE + PAGE))

    def write(self, count: int) -> None:
        """One block at a time."""
        for place in range(count):
            self.slab.write(place.to_bytes(16, "little"), place, self.views[place])

    def read(self, count: int) -> None:
        """One block at a time."""
        for place in range(count):
            assert self.slab.read(place.to_bytes(16, "little"), place, self.views[place])


class OverNixl:
    """One transfer of NIXL's POSIX backend, over the named kind of asynchronous I/O."""

    def __init__(self, blocks: Blocks, file: int, queue: str) -> None:
        self.agent = api.nixl_agent(
            AGENT, api.nixl_agent_config(enable_prog_thread=False, backends=[])
        )
        self.agent.create_backend("POSIX", {queue: "true"})
        address = blocks.ctypes.data
        whole = {
            "DRAM": (address, blocks.nbytes, 0, ""),
            "FILE": (0, len(blocks) * STRIDE, file, ""),
        }
        for kind, at in whole.items():
            self.agent.register_memory([at], kind, backends=["POSIX"])
        self.ours = [(address + n * BLOCK_BYTES, BLOCK_BYTES, 0) for n in range(len(blocks))]
        self.theirs = [(n * STRIDE, BLOCK_BYTES, file) for n in range(len(blocks))]

    def write(self, count: int) -> None:
        """All blocks in one transfer."""
        self._move("WRITE", count)

    def read(self, count: int) -> None:
        """All blocks in one transfer."""
        self._move("READ", count)

    def _move(self, operation: str, count: int) -> None:
        ours = self.agent.get_xfer_descs(self.ours[:count], "DRAM")
        theirs = self.agent.get_xfer_descs(self.theirs[:count], "FILE")
        handle = self.agent.initialize_xfer(operation, ours, theirs, AGENT, backends=["POSIX"])
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        assert state == "DONE", state
        self.agent.release_xfer_handle(handle)


def main() -> None:
    """Print a table of median GB/s; each run measures all ways in turn."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as folder:
        blocks = np.random.default_rng(0).integers(
            0, 256, (max(BATCHES), BLOCK_BYTES), dtype=np.uint8
        )
        with _ways(blocks, Path(folder)) as ways:
            for name, way in ways.items():
                way.write(max(BATCHES))
                sys.stdout.write(f"{name} ")
            sys.stdout.write(f"\n{'GB/s':24}" + "".join(f"{name:>16}" for name in ways) + "\n")
            for count in BATCHES:
                _rows(ways, count, Path(folder))


def _rows(ways: dict[str, DiskPath], count: int, folder: Path) -> None:
    _row(f"write {count}", count, {name: way.write for name, way in ways.items()}, None)
    reads = {name: way.read for name, way in ways.items()}
    _row(f"read {count}, warm", count, reads, None)
    _row(f"read {count}, cold", count, reads, folder)


def _row(
    name: str, count: int, calls: Mapping[str, Callable[[int], None]], cold: Path | None
) -> None:
    seconds: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(RUNS):
        for way, call in calls.items():
            if cold is not None:
                _drop(cold)
            begin = time.perf_counter()
            call(count)
            seconds[way].append(time.perf_counter() - begin)
    rates = [count * BLOCK_BYTES / statistics.median(took) / 1e9 for took in seconds.values()]
    sys.stdout.write(f"{name:24}" + "".join(f"{rate:16.2f}" for rate in rates) + "\n")


def _drop(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _ways(blocks: Blocks, folder: Path) -> Iterator[dict[str, DiskPath]]:
    """All ways, each with its own file, as a mapped file is never dropped from the cache."""
    with ExitStack() as files:

        def file(name: str) -> int:
            fd = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
            files.callback(os.close, fd)
            os.ftruncate(fd, len(blocks) * STRIDE)
            return fd

        yield {
            "pread": Plain(blocks, file("pread")),
            "mmap": Mapped(blocks, file("mmap")),
            **{name: OverNixl(blocks, file(name), queue) for name, queue in NIXL.items()},
            "slab": OverSlab(blocks, folder),
        }


if __name__ == "__main__":
    main()
