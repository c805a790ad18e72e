"""Compiles kernels ahead of their rows, in as many processes as there are cores; runs nothing.

    python -m bench.gpu.ahead SHAPE MODULE

executes a module's rows over tensors without memory, and the start of an engine for rows of
whole steps. Triton then has their kernels in its cache, where the measuring process finds them.
A row for which this does not work is named, and its kernels are compiled when it is measured.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch

from bench.gpu import rows as our_rows
from bench.gpu.measuring import Measured, told
from bench.gpu.order import RowEntry, find_entries
from bench.gpu.rows.adapted_steps import ADAPTERS
from bench.gpu.shapes import SHAPES, Shape

OVERLAPPED, BROUGHT, ADAPTED = "overlapped_steps", "brought_steps", "adapted_steps"
ENGINES = "steps", OVERLAPPED, BROUGHT, ADAPTED
WITHOUT_KERNELS = {"handovers", "loading", "their_steps", "products", "apart_steps"}
"""Or without kernels that no other module has."""
LAYERS = 4  # all layers have the same launches
META = torch.device("meta")
LONGEST_S = 150.0
STDERR = 2


def compile_ahead(entries: Sequence[RowEntry], ends_at: float) -> None:
    """Compile the kernels of `entries`; kills processes that take too long, or at `ends_at`."""
    wanted = dict.fromkeys((one.shape.name, one.module) for one in entries)
    jobs = [job for job in wanted if job[1] not in WITHOUT_KERNELS]
    until = min(ends_at, time.monotonic() + LONGEST_S)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(partial(_compile, until), jobs))


def _compile(until: float, job: tuple[str, str]) -> None:
    """Compile one module's kernels in a separate process."""
    left, command = until - time.monotonic(), [sys.executable, "-m", "bench.gpu.ahead", *job]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, stdout=STDERR, timeout=max(0.0, left), check=False)


def compile_module(shape: Shape, module: str, package: ModuleType = our_rows) -> Iterator[str]:
    """Compile; yields the rows for which this does not work, and why."""
    from engine.kernels.gpu.overlapping import overlap_launches

    compile_only()
    if module in ENGINES:
        brings = module == BROUGHT
        overlap_launches(on=brings or module == OVERLAPPED, brings=brings)
        _engine(shape, adapters=ADAPTERS if module == ADAPTED else 0)
        return
    for entry in find_entries([shape], [], package):
        if entry.module != module or isinstance(entry.row, Measured):
            continue
        try:
            entry.row.make(META).run()
        except Exception as error:  # noqa: BLE001  the next row's kernels are others
            yield f"{shape.name} {entry.row}: {told(error)}"


def compile_only() -> None:
    """From now on, launches in this process are compiled but not run."""
    from triton.runtime.jit import JITFunction

    launch: Callable[..., object] = JITFunction.run

    def compiled(kernel: object, *args: object, **kwargs: object) -> object:
        return launch(kernel, *args, **(kwargs | {"warmup": True}))

    JITFunction.run = compiled


def _engine(shape: Shape, adapters: int) -> None:
    """Compile all that an engine launches at startup, and its decode steps."""
    from bench.gpu.engines import Loaded

    layers = min(LAYERS, shape.num_hidden_layers)
    Loaded(replace(shape, num_hidden_layers=layers), _accelerator(), adapters).on(META)


def _accelerator() -> Any:  # noqa: ANN401  engine.running.accelerator's, more than torch and triton
    from engine.kernels.gpu.kernels import TritonKernels
    from engine.kernels.gpu.products import TritonProducts
    from engine.kernels.gpu.sampling.adjusting import adjust, apply_bitmasks
    from engine.kernels.gpu.sampling.choosing import choose
    from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs
    from engine.kernels.sampling import SamplingKernels

    class Compiling:
        """See Accelerator; without memory."""

        kernels = TritonKernels()
        products = TritonProducts()
        drawing = SamplingKernels(choose, adjust, apply_bitmasks, gather_logprobs)

        def copy_to_host(self, _: torch.Tensor) -> None:
            """Nothing to copy."""

        def recorder(self) -> "Compiling":
            """The same object."""
            return self

        def record(self, work: Callable[[], None]) -> Callable[[], None]:
            """Run `work` once."""
            work()
            return work

        def record_pieces(self, work: Callable[..., None]) -> list[Callable[[], None]]:
            """Run all pieces once, and what is launched between them."""
            work(lambda between: between())
            return []

        def lend(self, tensor: torch.Tensor) -> torch.Tensor:
            """The same object."""
            return tensor

    return Compiling()


if __name__ == "__main__":
    for line in compile_module(SHAPES[sys.argv[1]], sys.argv[2]):
        print(f"not compiled ahead: {line}", flush=True)  # noqa: T201  it is a program
