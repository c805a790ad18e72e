"""Kernels in Triton run on a GPU where there is one, and in Triton's interpreter elsewhere."""

from collections.abc import Generator, Iterator
from contextlib import nullcontext

import pytest
import torch

from tests.kernels.main_memory import MainMemory

MAIN_MEMORY = MainMemory()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What is allocated is full of NaN until it is written."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """Several processes may run tests on one GPU."""
    yield
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def on_the_device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Nothing is launched over main memory, nor by a test that asks for no device."""
    if torch.cuda.is_available():
        yield  # Triton refuses it
        return
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def checked(self: object, *args: object, **kwargs: object) -> object:
        assert "device" in request.fixturenames, "a launch by a test without a device"
        told = *args, *kwargs.values()
        assert not any(map(MAIN_MEMORY.has, told)), "a launch over main memory"
        with torch._C.DisableTorchFunction():
            return launch(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", checked)
    with MAIN_MEMORY:
        yield


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module's own tensors are main memory's, too."""
    with MAIN_MEMORY if isinstance(collector, pytest.Module) else nullcontext():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="wants a CUDA device"))
