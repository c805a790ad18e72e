"""CPU kernels compiled otherwise than they are installed."""

from collections.abc import Sequence

import pytest

from engine.kernels.cpu import build
from engine.kernels.cpu.native import CpuKernels


def compiled(factory: pytest.TempPathFactory, flags: Sequence[str] | None) -> CpuKernels:
    """With these flags of the compiler; None: as they are installed."""
    if flags is None:
        return CpuKernels(build.library())
    path = factory.mktemp("kernels") / "kernels.so"
    build.compile_into(path, "g++", flags)
    return CpuKernels(path)
