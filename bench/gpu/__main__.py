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
from pathlib import Path

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

    def results(self) -> Iterator[Measured]:
        """Row by row; what there was no time for is named, too."""
        for shape in self.shapes:
            for row in find_rows(shape, self.only):
                yield row if isinstance(row, Measured) else self._one(shape, row)

    def _one(self, shape: Shape, row: Row) -> Measured:
        if time.monotonic() > self.ends_at:
            return Measured(shape.name, row.name, row.setting, failed="no time left")
        return self.meter.measure(shape, row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 where a row failed, 2 without a device."""
    asked = _parser().parse_args(arguments)
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
    measured = list[Measured]()
    for one in run.results():
        measured.append(one)
        _say(report.line(one))
        if asked.out is not None:
            report.write(asked.out, said, measured)
    return 1 if any(one.failed for one in measured) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="where results go, as JSON")
    parser.add_argument("--shapes", nargs="+", default=OF_A_GPU, choices=list(SHAPES))
    parser.add_argument("--only", nargs="+", default=[], help="rows with one of these words")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="no row begins later")
    return parser


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
