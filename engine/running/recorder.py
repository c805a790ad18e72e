"""Captures work on a device as CUDA graphs: whole, or in pieces with launches in between."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

OURS_ALONE = "thread_local"  # capture only this thread: NCCL's polls events meanwhile
WARM_UPS = 2  # before a capture: kernels are compiled, libraries allocate their workspaces
WHOLE_NUMBERS = {1: "|i1", 2: "<i2", 4: "<i4"}  # CUDA array interface's integers, by bytes

Replay: TypeAlias = Callable[[], None]
Cut: TypeAlias = Callable[[Callable[[], None]], None]
"""Ends a piece and begins the next one; its argument is launched in between."""


class Recorder(Protocol):
    """Captures work, to replay it with one launch.

    A replay reads and writes the memory that was read and written during the capture. All
    captures of a recorder share one memory pool: only one of them may run at a time.
    """

    def record(self, work: Callable[[], None]) -> Replay:
        """Warm `work` up by running it, then capture it; calling the result replays it."""

    def record_pieces(self, work: Callable[[Cut], None]) -> Sequence[Replay]:
        """The same in pieces: one more than the `work` has cuts.

        Launches between two pieces are not captured: the caller repeats them at each replay.
        """

    def lend(self, tensor: Tensor) -> Tensor:
        """A view of a tensor made during a capture that does not keep its memory allocated.

        The pool may reuse the memory after the last captured use.
        """


class CudaRecorder:
    """See Recorder. CUDA graphs, which share the memory that they work in."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None]) -> Replay:
        """See Recorder."""
        (replay,) = self.record_pieces(lambda _: work())
        return replay

    def record_pieces(self, work: Callable[[Cut], None]) -> Sequence[Replay]:
        """See Recorder."""
        self._warm_up(partial(work, _launch))
        pieces = list[torch.cuda.CUDAGraph]()
        with torch.cuda.stream(self._stream):
            self._begin(pieces)
            work(partial(self._cut, pieces))
            pieces[-1].capture_end()
        return [piece.replay for piece in pieces]

    def lend(self, tensor: Tensor) -> Tensor:
        """See Recorder."""
        return torch.as_tensor(_Memory(tensor), device=self._device).view(tensor.dtype)

    def _warm_up(self, work: Callable[[], None]) -> None:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        gc.collect()  # tensors in garbage cycles must not be freed in the middle of a capture
        torch.cuda.empty_cache()

    def _begin(self, pieces: list[torch.cuda.CUDAGraph]) -> None:
        pieces.append(torch.cuda.CUDAGraph())
        pieces[-1].capture_begin(pool=self._pool, capture_error_mode=OURS_ALONE)

    def _cut(self, pieces: list[torch.cuda.CUDAGraph], _between: Callable[[], None]) -> None:
        """Nothing runs during a capture, so there is nothing to launch in between."""
        pieces[-1].capture_end()
        self._begin(pieces)


def _launch(between: Callable[[], None]) -> None:
    between()


class _Memory:
    """A tensor's memory in the CUDA array interface, without a reference to the tensor.

    The interface has no bfloat16, so elements are presented as integers of the same size.
    """

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.itemsize
        assert size in WHOLE_NUMBERS, f"{tensor.dtype} is no type of activations"
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": tuple(tensor.shape),
            "strides": tuple(size * stride for stride in tensor.stride()),
            "typestr": WHOLE_NUMBERS[size],
            "data": (tensor.data_ptr(), False),
            "version": 2,
        }
