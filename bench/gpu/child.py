"""The process that measures: `python -m bench.gpu.child`, started by bench/gpu/lanes.py.

It touches the device, and the process that started it does not. So whatever a row does to the
device's context, or to this process, ends only this process. It reports each result as a line
of JSON before it continues.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from bench.gpu import report
from bench.gpu.ceilings import Ceilings, measure
from bench.gpu.measuring import Measured, Meter
from bench.gpu.order import find_entries
from bench.gpu.shapes import SHAPES
from bench.gpu.timing import timer_of

Tell = Callable[[dict[str, Any]], None]


def run(job: dict[str, Any], tell: Tell) -> None:
    """Measure the rows from `first` to before `end`, of `shapes` and `only`.

    Measures ceilings first, if they are None. Ends early after a row that has lost the device.
    """
    device = numbered(torch.device(job["device"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timer, known = timer_of(device), job["ceilings"]
    ceilings = measure(device, timer) if known is None else Ceilings(**known)
    if known is None:
        tell({"ceilings": asdict(ceilings), "facts": report.facts(device)})
    meter = Meter(device, timer, ceilings)
    entries = find_entries([SHAPES[name] for name in job["shapes"]], job["only"])
    for index in range(job["first"], job["end"]):
        entry = entries[index]
        if isinstance(entry.row, Measured):
            continue
        tell({"begun": str(entry.row)})
        tell({"measured": asdict(meter.measure(entry.shape, entry.row))})
        if meter.device_is_lost():
            return


def numbered(device: torch.device) -> torch.device:
    """A device with its index: `cuda` is the first one, and tensors' devices have a number."""
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def main() -> None:
    """The arguments are a job as JSON, and the descriptor of a pipe for reports."""
    with os.fdopen(int(sys.argv[2]), "w") as pipe:

        def tell(news: dict[str, Any]) -> None:
            pipe.write(json.dumps(news) + "\n")
            pipe.flush()

        run(json.loads(sys.argv[1]), tell)


if __name__ == "__main__":
    main()
