"""`python -m bench.gpu`: kernels and steps on one GPU, compared with floors and torch's own.

    python -m bench.gpu --out results.json
    python -m bench.gpu --shapes 8b --only decode_attention product
    python -m bench.gpu --device cpu --shapes tiny

The last command tests the benchmark itself without a GPU; its numbers are meaningless. A floor
is what a row must move or compute, divided by the device's peak rate in the same run. This
process does not touch the device; its child processes do (bench/gpu/lanes.py).
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from bench.gpu import report
from bench.gpu.ahead import compile_ahead
from bench.gpu.ceilings import Ceilings
from bench.gpu.lanes import NoCeilings, RowProcesses
from bench.gpu.measuring import Measured
from bench.gpu.order import find_entries
from bench.gpu.shapes import OF_A_GPU, SHAPES
from bench.gpu.targets import verdicts

SECONDS, ROW_SECONDS = 570.0, 150.0
NO_DEVICE = 2


@dataclass(slots=True)
class Book:
    """The results so far: printed line by line, and rewritten to the file after each."""

    out: Path | None
    lanes: RowProcesses
    said: dict[str, Any] = field(default_factory=report.asked)
    measured: list[Measured] = field(default_factory=list)

    def add(self, one: Measured) -> None:
        """Add one row."""
        if "ceilings" not in self.said and (known := self.lanes.ceilings) is not None:
            self.said |= self.lanes.facts | {"ceilings": known}
            _say(report.heading(self.said, Ceilings(**known)))
        self.measured.append(one)
        _say(report.line(one))
        if self.out is not None:
            report.write(self.out, self.said, self.measured)

    def close(self) -> None:
        """Print the targets, and whether they were reached."""
        lines = [*map(str, verdicts(self.measured))]
        _say("\n".join(["", *lines]))
        if self.out is not None:
            report.write(self.out, self.said | {"targets": lines}, self.measured)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit code 0, 1 if a row failed, 2 without a device."""
    ends_at = time.monotonic()
    asked = _parser().parse_args(arguments)
    ends_at += asked.seconds
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        _say(
            "bench.gpu: there is no CUDA device; --device cpu --shapes tiny tries the bench out"
        )
        return NO_DEVICE
    if asked.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before a kernel is defined
    signal.signal(signal.SIGTERM, _leave)
    job = {"device": asked.device, "shapes": list(asked.shapes), "only": list(asked.only)}
    entries = find_entries([SHAPES[name] for name in asked.shapes], asked.only)
    book = Book(asked.out, RowProcesses(entries, job, ends_at, asked.row_seconds))
    if asked.device != "cpu" and not asked.no_ahead:
        compile_ahead(entries, ends_at)
    try:
        for one in book.lanes.results():
            book.add(one)
    except NoCeilings:
        _say(f"bench.gpu: {asked.device} could not be measured at all")
        return NO_DEVICE
    finally:
        book.close()
    return 1 if any(one.failed for one in book.measured) else 0


def _leave(*_: object) -> NoReturn:
    """Exit normally, so that no child process outlives this one."""
    sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="where results go, as JSON")
    parser.add_argument("--shapes", nargs="+", default=OF_A_GPU, choices=list(SHAPES))
    parser.add_argument("--only", nargs="+", default=[], help="rows with one of these words")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="all is over by then")
    parser.add_argument("--row-seconds", type=float, default=ROW_SECONDS, help="of one row")
    parser.add_argument("--no-ahead", action="store_true", help="compile nothing ahead")
    return parser


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
