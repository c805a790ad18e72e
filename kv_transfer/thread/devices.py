"""What a thread has to tell CUDA before it moves KV that lies on a device.

A thread has no context of its own accord, and UCX, which asks the driver, needs one. What
torch does for this thread, such as gathering bytes for checksums, gets a stream of its own: on
the one that all threads begin with it would wait for the step that the engine's loop runs.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from kv_transfer.regions import Region


class Cuda(Protocol):
    """Of torch.cuda what is needed here."""

    def set_device(self, device: str) -> None:
        """For the calling thread."""

    def Stream(self, device: str) -> Any:  # noqa: N802, ANN401  its name, and its type
        """Another one."""

    def set_stream(self, stream: Any) -> None:  # noqa: ANN401
        """For the calling thread."""


def enter_device(regions: Sequence[Region], cuda: Cuda | None = None) -> None:
    """Work on the first region's device from now on; nothing to do on a CPU.

    The others are other ranks', whose processes have threads of their own.
    """
    if not regions or regions[0].device == "cpu":
        return
    device = regions[0].device
    chosen = cuda or _torch()
    chosen.set_device(device)
    chosen.set_stream(chosen.Stream(device))


def _torch() -> Cuda:
    import torch  # only where there is a device

    found: Any = torch.cuda
    return found  # type: ignore[no-any-return]
