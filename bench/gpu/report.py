"""Writes the results as a table and as JSON."""

import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bench.gpu.ceilings import Ceilings
from bench.gpu.measuring import Measured

US, GIGA, TERA = 1e6, 1e9, 1e12
FORMAT, TOLD_KERNELS = 3, 8
COLUMNS = {"us": 10, "floor": 10, "share": 7, "host us": 9, "clock": 10, "error": 9}


def facts(device: torch.device) -> dict[str, Any]:
    """Facts about the device, its driver and the libraries."""
    return {
        "device": _name(device),
        "driver": _driver() if device.type == "cuda" else None,
        "memory_bytes": _memory(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _triton(),
    }


def asked() -> dict[str, Any]:
    """The command that was run, and when."""
    return {
        "format": FORMAT,
        "command": " ".join(["python", "-m", "bench.gpu", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
    }


def write(file: Path, said: dict[str, Any], measured: Sequence[Measured]) -> None:
    """Rewrite the whole file each time, so that an interrupted run keeps its results."""
    rows = [asdict(one) | {"share": one.share} for one in measured]
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(file.name + ".part")
    fresh.write_text(json.dumps(said | {"rows": rows}, indent=1) + "\n")
    fresh.replace(file)


def heading(said: dict[str, Any], ceilings: Ceilings) -> str:
    """The device and its peak rates."""
    float8 = f", float8 {ceilings.float8 / TERA:.0f}" if ceilings.float8 else ""
    titles = "".join(f"{name:>{width}}" for name, width in COLUMNS.items())
    return (
        f"{said['device']}, driver {said['driver']}, torch {said['torch']}, "
        f"triton {said['triton']}\n"
        f"copies {ceilings.bandwidth / GIGA:.0f} GB/s, multiplies bfloat16 at "
        f"{ceilings.bfloat16 / TERA:.1f} TFLOP/s{float8}\n"
        f"{'shape':14}{'row':62}{titles}  rivals"
    )


def line(one: Measured) -> str:
    """One row; for a step also the longest kernels, and the time between kernels."""
    title = f"{one.shape:14}{f'{one.name}: {one.setting}':62}"
    if one.failed is not None:
        return f"{title} failed: {one.failed}"
    cells = title + "".join(_cells(one)) + "  " + ", ".join(_rivals(one))
    return "\n".join([cells.rstrip(), *_kernels(one)])


def _kernels(one: Measured) -> Iterator[str]:
    if not one.kernels:
        return
    calls, works_s = (sum(each[at] for each in one.kernels.values()) for at in (0, 1))
    between = "" if one.busy_s is None else f", {_us(one.busy_s - works_s)} between them"
    yield f"{'':16}{calls:.0f} kernels work {_us(works_s)}{between}"
    for name, (many, seconds) in islice(one.kernels.items(), TOLD_KERNELS):
        yield f"{'':16}{_us(seconds):>10}{many:>8.0f} x  {name}"


def _cells(one: Measured) -> Iterator[str]:
    share = "" if one.share is None else f"{one.share:.0%}"
    error = "" if one.error is None else f"{one.error:.1e}"
    times = _us(one.seconds), _us(one.floor_s), share, _us(one.host_s), _us(one.clock_s)
    yield from map(str.rjust, (*times, error), COLUMNS.values())


def _rivals(one: Measured) -> Iterator[str]:
    if one.told is not None:
        yield one.told
    for name, took in one.rivals.items():
        yield f"{name} {_us(took)}" if isinstance(took, float) else f"{name} failed ({took})"


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * US:.1f}"


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _memory(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def _driver() -> str | None:
    return _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _commit() -> str | None:
    return _said("git", "rev-parse", "--short", "HEAD")


def _said(*command: str) -> str | None:
    """The first line of a command's output, or None."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.splitlines()[0].strip() if run.stdout else None


def _triton() -> str | None:
    try:
        import triton  # not installed for CPUs alone
    except ImportError:
        return None
    return str(triton.__version__)
