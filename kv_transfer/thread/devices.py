"""Prepares a thread to move KV on a device with CUDA.

A new thread has no CUDA context, and UCX, which uses the driver, needs one: without it, memory
of other processes looks unreachable by CUDA IPC. torch does nothing for a device that is the
current one already, so the thread waits for its empty stream. What torch does for
this thread, such as gathering bytes for checksums, gets its own stream: on the default stream
that all threads share, it would wait for the step that the engine's loop runs.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from kv_transfer.regions import Region


class Cuda(Protocol):
    """The parts of torch.cuda that are needed here."""

    def set_device(self, device: str) -> None:
        """For the calling thread."""

    def Stream(self, device: str) -> Any:  # noqa: N802, ANN401  its name, and its type
        """A new stream."""

    def set_stream(self, stream: Any) -> None:  # noqa: ANN401
        """For the calling thread."""


def enter_device(regions: Sequence[Region], cuda: Cuda | None = None) -> None:
    """Use the first region's device from now on; does nothing on a CPU.

    The other regions belong to other ranks, whose processes have their own threads.
    """
    if not regions or regions[0].device == "cpu":
        return
    device = regions[0].device
    chosen = cuda or _torch()
    chosen.set_device(device)
    stream = chosen.Stream(device)
    chosen.set_stream(stream)
    stream.synchronize()


def _torch() -> Cuda:
    import torch  # only where there is a device

    found: Any = torch.cuda
    return found  # type: ignore[no-any-return]
