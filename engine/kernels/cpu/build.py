"""Compiles the CPU kernels, once for a machine: `python -m engine.kernels.cpu.build`.

They depend on neither Python nor torch, so only a compiler is needed. The library is stored
under the virtual environment's prefix, or, if that is not writable, in the user's cache. Its
name contains a digest of the sources, the flags and the processor's features, so another
machine or another version compiles its own.
"""

import fcntl
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from engine.errors import KernelsUnavailable

SOURCES = Path(__file__).parent / "native"
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fopenmp")
CPU_INFO = Path("/proc/cpuinfo")
FIRST_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index0/size")
LONGEST_S = 300


def main() -> None:
    """Compile, and print the outcome in one line; a missing compiler is not a failure."""
    try:
        said = f"CPU kernels: {library()}"
    except KernelsUnavailable as error:
        said = f"CPU kernels: none, plain torch is used ({error})"
    sys.stdout.write(said + "\n")


def library() -> Path:
    """The compiled library, compiled now if it does not exist; raises KernelsUnavailable."""
    name = f"pdserve-{_digest()}.so"
    for folder in _folders():
        with suppress(OSError):
            (folder / name).stat()
            return folder / name
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return _build(folder / name)
    raise KernelsUnavailable("no folder to write to")


def compile_into(target: Path, compiler: str, flags: Sequence[str] = FLAGS) -> None:
    """Compile all sources into one library; raises KernelsUnavailable.

    The file appears at `target` atomically, so no process finds a part of it.
    """
    sources = sorted(str(path) for path in SOURCES.glob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [compiler, *flags, *sources, "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_S)
        except subprocess.CalledProcessError as error:
            raise KernelsUnavailable(f"{compiler}: {_complaint(error.stderr)}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KernelsUnavailable(f"{compiler}: {error}") from error
        made.replace(target)


def _complaint(said: bytes) -> str:
    """The first line of the compiler's output that is an error."""
    lines = said.decode(errors="replace").splitlines()
    return next((line for line in lines if "error" in line), "failed without a word")


def _build(target: Path) -> Path:
    """Compile under a lock: of several processes one compiles, and the others wait for it."""
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            compile_into(target, os.environ.get("CXX") or "g++", _flags())
    return target


def _folders() -> Iterable[Path]:
    """The folders for the library, best first; an unknown user has no home."""
    yield Path(sys.prefix) / "cache"
    if cache := os.environ.get("XDG_CACHE_HOME"):
        yield Path(cache) / "pdserve"
        return
    with suppress(RuntimeError):
        yield Path.home() / ".cache" / "pdserve"


def _digest() -> str:
    said = hashlib.sha256(repr((_flags(), platform.machine(), _features())).encode())
    for path in sorted(SOURCES.iterdir()):
        said.update(path.read_bytes())
    return said.hexdigest()[:16]


def _flags() -> Sequence[str]:
    """FLAGS, and with them the first data cache's size in KiB, if Linux reports it."""
    with suppress(OSError):
        size = FIRST_CACHE.read_text().strip()
        if size.endswith("K") and size[:-1].isdecimal():
            return (*FLAGS, f"-DPD_FIRST_CACHE={size[:-1]}")
    return FLAGS


def _features() -> str:
    """The first processor's model and instructions, as Linux reports them."""
    with suppress(OSError):
        lines = CPU_INFO.read_text().split("\n\n")[0].splitlines()
        told = ("model name", "flags", "Features", "CPU part")
        return "\n".join(sorted(line for line in lines if line.startswith(told)))
    return platform.processor()


if __name__ == "__main__":
    main()
