"""The contract of a row: what to run, its inputs, its rivals, and its floor.

A kernel's rows are a module of bench/gpu/rows/ with

    def rows(shape: Shape) -> Iterator[Row]:

which is cheap, touches no device, and yields nothing for shapes that do not use the kernel.
A module may import torch, triton, numpy, `engine.kernels` and `bench.gpu`, and nothing that
imports more. A module that cannot be imported, and a row that fails, are reported by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from engine.kernels.floor import Floor

Run = Callable[[], object]


class Counted(NamedTuple):
    """The result of a row that measures itself: its seconds, its floor, and its own report."""

    seconds: float
    least_s: float
    told: str


def _nothing() -> None:
    """The default `close`: most rows have nothing to close."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A row with its inputs on the device.

    `run` launches the work on the current stream, does not wait, and can be called any number
    of times. `twin` computes the result of `run` in plain torch: a Tensor, or a sequence of
    which the first is compared. `rivals` are by name: each prepares what only it needs, and
    returns the call to time.

    `waits`: a call ends when its result is on the host, and more than this device works for it,
    so it is measured by the host's clock, one call after the other and without flushes; `twin`
    is then called after `run`. `steps`: a call also leaves its result on the host, but all its
    work is on the current stream, so it is measured by events and by the clock. `measures`: a
    call returns the seconds that count, or Counted. `close` frees what is not freed by itself.
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
    """One line: a kernel and its setting, such as `batch 64, context 2048`.

    `make` makes random inputs on the device, which are freed after the row.
    """

    name: str
    setting: str
    make: Callable[[torch.device], Prepared]

    def __str__(self) -> str:
        return f"{self.name}: {self.setting}"
