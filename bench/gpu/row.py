"""The contract of a row: what to run, its inputs, its rivals, and its floor.

A kernel's rows are a module of bench/gpu/rows/ with

    def rows(shape: Shape) -> Iterator[Row]:

which is cheap, touches no device, and yields nothing for shapes that do not have the kernel.
A module may import torch, triton, numpy, `engine.kernels` and `bench.gpu`, and nothing that
imports more. One that cannot be imported, and a row that fails, are reported by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from engine.kernels.floor import Floor

Run = Callable[[], object]


class Counted(NamedTuple):
    """Of a row that measures itself: its seconds, the least there could be, what it tells."""

    seconds: float
    least_s: float
    told: str


def _nothing() -> None:
    """What most rows have to close."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A row with its inputs on the device.

    `run` launches the work on the current stream, waits for nothing, and can be called any
    number of times. `twin` gives what `run` gives, in plain torch: a Tensor, or a sequence of
    which the first is compared. `rivals` by name: each makes what only it needs, and answers
    with what is timed.

    `waits`: a call ends when its result is on the host, and others than this device work for
    it, so it is measured by the clock, one call behind the other and without flushes; then
    `twin` is asked for behind `run`. `steps`: a call leaves its result on the host as well, but
    all its work is on the current stream: it is measured by events and by the clock.
    `measures`: a call answers with the seconds that it counts, or Counted. `close` gives back
    what is not let go of by itself.
    """

    run: Run
    floor: Floor
    twin: Run | None = None
    rivals: Mapping[str, Callable[[], Run]] = field(default_factory=dict)
    waits: bool = False
    steps: bool = False
    measures: bool = False
    close: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a kernel and what it is given, such as `batch 64, context 2048`.

    `make` draws random inputs on the device; what it makes is let go of behind the row.
    """

    name: str
    setting: str
    make: Callable[[torch.device], Prepared]

    def __str__(self) -> str:
        return f"{self.name}: {self.setting}"
