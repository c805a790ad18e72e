"""What several tests of kernels are given."""

import pytest

from engine.kernels.cpu import build
from engine.kernels.cpu.native import CpuKernels

PORTABLE = ("-O2", "-std=c++17", "-fPIC", "-shared", "-fopenmp")


@pytest.fixture(scope="session", params=["this machine", "any machine"])
def kernels(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CpuKernels:
    """As they are installed, and compiled for no machine in particular."""
    if request.param == "this machine":
        return CpuKernels(build.library())
    path = tmp_path_factory.mktemp("kernels") / "portable.so"
    build.compile_into(path, "g++", PORTABLE)
    return CpuKernels(path)
