"""Kernels compiled ahead of their rows, by as many processes as there are cores: nothing runs.

    python -m bench.gpu.ahead SHAPE MODULE

goes through a module's rows over tensors without memory, and through the start of an engine
where the rows are whole steps. What Triton compiles for them is in its cache then, where the
process that measures finds it. A row that cannot be gone through like this is named, and
compiled when it is measured.
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
from bench.gpu.shapes import SHAPES, Shape

STEPS, OVERLAPPED = "steps", "overlapped_steps"
WITHOUT_KERNELS = {"handovers", "loading", "their_steps", "products", "apart_steps"}
"""Or with none that no other module has."""
LAYERS = 4  # what is launched for one of them is launched for any
META = torch.device("meta")
LONGEST_S = 150.0
STDERR = 2


def compile_ahead(entries: Sequence[RowEntry], ends_at: float) -> None:
    """All that these launch; who is still at it by then, or for too long, is killed."""
    wanted = dict.fromkeys((one.shape.name, one.module) for one in entries)
    jobs = [job for job in wanted if job[1] not in WITHOUT_KERNELS]
    until = min(ends_at, time.monotonic() + LONGEST_S)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(partial(_compile, until), jobs))


def _compile(until: float, job: tuple[str, str]) -> None:
    """In a process of its own."""
    left, command = until - time.monotonic(), [sys.executable, "-m", "bench.gpu.ahead", *job]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, stdout=STDERR, timeout=max(0.0, left), check=False)


def compile_module(shape: Shape, module: str, package: ModuleType = our_rows) -> Iterator[str]:
    """Names the rows that cannot be compiled like this, and why."""
    from engine.kernels.gpu.overlapping import overlap_launches

    compile_only()
    if module in (STEPS, OVERLAPPED):
        overlap_launches(on=module == OVERLAPPED)
        _engine(shape)
        return
    for entry in find_entries([shape], [], package):
        if entry.module != module or isinstance(entry.row, Measured):
            continue
        try:
            entry.row.make(META).run()
        except Exception as error:  # noqa: BLE001  the next row's kernels are others
            yield f"{shape.name} {entry.row}: {told(error)}"


def compile_only() -> None:
    """From now on, in this process, what is launched is compiled, and does not run."""
    from triton.runtime.jit import JITFunction

    launch: Callable[..., object] = JITFunction.run

    def compiled(kernel: object, *args: object, **kwargs: object) -> object:
        return launch(kernel, *args, **(kwargs | {"warmup": True}))

    JITFunction.run = compiled


def _engine(shape: Shape) -> None:
    """Everything that it launches before it serves, and its decode steps."""
    from bench.gpu.engines import Loaded

    layers = min(LAYERS, shape.num_hidden_layers)
    Loaded(replace(shape, num_hidden_layers=layers), _accelerator()).on(META)


def _accelerator() -> Any:  # noqa: ANN401  engine.running.accelerator's, more than torch and triton
    from engine.kernels.gpu.kernels import TritonKernels
    from engine.kernels.gpu.products import TritonProducts
    from engine.kernels.gpu.sampling.adjusting import adjust, apply_bitmasks
    from engine.kernels.gpu.sampling.choosing import choose
    from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs
    from engine.kernels.sampling import SamplingKernels

    class Compiling:
        """See Accelerator: one without memory."""

        kernels = TritonKernels()
        products = TritonProducts()
        drawing = SamplingKernels(choose, adjust, apply_bitmasks, gather_logprobs)

        def copy_to_host(self, _: torch.Tensor) -> None:
            """Nothing is there."""

        def recorder(self) -> "Compiling":
            """Itself."""
            return self

        def record(self, work: Callable[[], None]) -> Callable[[], None]:
            """Once through it."""
            work()
            return work

        def record_pieces(self, work: Callable[..., None]) -> list[Callable[[], None]]:
            """Once through all of them, and what lies between."""
            work(lambda between: between())
            return []

        def lend(self, tensor: torch.Tensor) -> torch.Tensor:
            """Itself."""
            return tensor

    return Compiling()


if __name__ == "__main__":
    for line in compile_module(SHAPES[sys.argv[1]], sys.argv[2]):
        print(f"not compiled ahead: {line}", flush=True)  # noqa: T201  it is a program
