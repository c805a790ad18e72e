"""A CPU that is taken for a device: kernels in plain torch or interpreted, and graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.kernels.contract import PagedKernels
from engine.kernels.gpu.twins import TorchKernels
from engine.loading import load_engine
from engine.running.graphs import Recorder
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

Call = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], object]
ASKING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class TapeRecorder:
    """Captures as a CUDA graph does: operations on tensors that are given, and no Python.

    What was captured is done again on the very tensors of then, wherever the work would find
    its tensors by now; numbers of the host are what they were. What asks the device is refused.
    """

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        with _Tape() as tape:
            work()
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            for call in tape.calls:
                _again(call)

        return replay


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = list[Call]()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  as torch calls it
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        assert func not in ASKING, f"{func} waits for the device in the middle of a graph"
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, made))
        return made


def _again(call: Call) -> None:
    func, args, kwargs, made = call
    fresh = func(*args, **kwargs)
    for old, new in zip(_tensors(made), _tensors(fresh), strict=True):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


def _tensors(made: object) -> list[Tensor]:
    if isinstance(made, Tensor):
        return [made]
    return (
        [one for one in made if isinstance(one, Tensor)]
        if isinstance(made, tuple | list)
        else []
    )


class FakeAccelerator:
    """A CPU for a device, whose memory is as large as it is told to be."""

    def __init__(
        self, kernels: PagedKernels, free: int = 1 << 30, total: int = 1 << 30
    ) -> None:
        self.kernels, self.free, self.total = kernels, free, total
        self.tape = TapeRecorder()

    def recorder(self) -> Recorder:
        return self.tape

    def memory_bytes(self) -> tuple[int, int]:
        return self.free, self.total

    def forget(self) -> None:
        return


def on_device(
    folder: Path, kernels: PagedKernels | None = None, **settings: object
) -> TorchEngine:
    """An engine in float32 whose steps are a device's; `settings` are EngineConfig's."""
    chosen: dict[str, Any] = {"dtype": "float32", "threads": 1, "max_num_seqs": 6, **settings}
    chosen.setdefault("kv_cache_memory_bytes", 1 << 24)
    accelerator = FakeAccelerator(kernels or TorchKernels())
    return load_engine(EngineConfig(model=str(folder), **chosen), accelerator=accelerator)
