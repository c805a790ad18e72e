"""`python -m bench.gpu`: kernels and steps on one GPU, beside their floors and torch's own.

    python -m bench.gpu --out results.json
    python -m bench.gpu --shapes 8b --only decode_attention product
    python -m bench.gpu --device cpu --shapes tiny

The last tries the bench itself out, without a GPU: its numbers say nothing. A floor is what a
row must move or compute, over what the device did at most in this very run.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

import torch

from bench.gpu import report
from bench.gpu.ceilings import measure
from bench.gpu.measuring import Measured, Meter, find_rows
from bench.gpu.row import Row
from bench.gpu.shapes import SHAPES, Shape
from bench.gpu.timing import timer_of

BUDGET_S = 570.0
OF_A_GPU = ("8b", "8b-fp8", "30b-a3b")
NO_DEVICE = 2


@dataclass(slots=True)
class Run:
    """Everything that was asked for, until the time is up."""

    meter: Meter
    shapes: Sequence[Shape]
    only: Sequence[str]
    ends_at: float

    def results(self, done: int = 0) -> Iterator[Measured]:
        """Row by row behind the first `done`; what there was no time for is named, too.

        It ends early with the row that has cost us the device.
        """
        for shape, row in islice(self._rows(), done, None):
            yield row if isinstance(row, Measured) else self._one(shape, row)
            if self.meter.device_is_lost():
                return

    def _rows(self) -> Iterator[tuple[Shape, Row | Measured]]:
        for shape in self.shapes:
            for row in find_rows(shape, self.only):
                yield shape, row

    def _one(self, shape: Shape, row: Row) -> Measured:
        if time.monotonic() > self.ends_at:
            return Measured(shape.name, row.name, row.setting, failed="no time left")
        return self.meter.measure(shape, row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 where a row failed, 2 without a device."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = _parser().parse_args(given)
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        _say(
            "bench.gpu: there is no CUDA device; --device cpu --shapes tiny tries the bench out"
        )
        return NO_DEVICE
    if asked.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before a kernel is defined
    device = torch.device(asked.device)
    ends_at, timer = time.monotonic() + asked.budget_s, timer_of(device)
    ceilings = measure(device, timer)
    said = report.facts(device, ceilings)
    _say(report.heading(said, ceilings))
    run = Run(
        Meter(device, timer, ceilings),
        [SHAPES[name] for name in asked.shapes],
        asked.only,
        ends_at,
    )
    measured = report.read(asked.out) if asked.done else []
    before = len(measured)
    for one in run.results(asked.done):
        measured.append(one)
        _say(report.line(one))
        if asked.out is not None:
            report.write(asked.out, said, measured)
        if run.meter.device_is_lost():
            done = asked.done + len(measured) - before
            _begin_anew(again(given, done, ends_at - time.monotonic()))
    return 1 if any(one.failed for one in measured) else 0


def again(given: Sequence[str], done: int, left_s: float) -> list[str]:
    """The same arguments for what is left of it."""
    return [*given, "--done", str(done), "--budget-s", f"{max(0.0, left_s):.0f}"]


def _begin_anew(arguments: Sequence[str]) -> NoReturn:
    """A process whose device has failed gets no other: one in its place does."""
    _say("the device has failed; going on in a new process")
    os.execv(sys.executable, [sys.executable, "-m", "bench.gpu", *arguments])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="where results go, as JSON")
    parser.add_argument("--shapes", nargs="+", default=OF_A_GPU, choices=list(SHAPES))
    parser.add_argument("--only", nargs="+", default=[], help="rows with one of these words")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="no row begins later")
    parser.add_argument("--done", type=int, default=0, help="rows to leave out at the front")
    return parser


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
