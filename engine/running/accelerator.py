"""What a step needs of a device beyond torch's operations; for CUDA, and to be stood in for."""

import gc
from typing import Protocol

import torch

from engine.errors import UnusableDevice
from engine.kernels.contract import PagedKernels
from engine.running.graphs import CudaRecorder, Recorder


class Accelerator(Protocol):
    """A device with kernels and memory of its own."""

    @property
    def kernels(self) -> PagedKernels:
        """What models and attention are given."""

    def recorder(self) -> Recorder:
        """For all graphs of one engine."""

    def memory_bytes(self) -> tuple[int, int]:
        """Free, and in all; what torch keeps for later is not free."""

    def forget(self) -> None:
        """Give back what torch keeps for later."""


class CudaAccelerator:
    """One CUDA device of this process."""

    def __init__(self, device: torch.device, kernels: PagedKernels) -> None:
        self._device, self.kernels = device, kernels

    def recorder(self) -> Recorder:
        """See Accelerator, here and below."""
        return CudaRecorder(self._device)

    def memory_bytes(self) -> tuple[int, int]:
        """As the driver counts, whoever else is on the device."""
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        return free, total

    def forget(self) -> None:
        """Tensors of cycles that nobody has any more among it."""
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


def open_accelerator(name: str) -> Accelerator | None:
    """For `--device`'s name; None: torch alone runs there, as on a CPU.

    Raises UnusableDevice.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UnusableDevice(f"--device {name}: {error}") from error
    if device.type != "cuda":
        return None
    count = torch.cuda.device_count()
    if not count:
        built = torch.version.cuda
        why = (
            "torch is built without it" if built is None else f"torch (CUDA {built}) sees none"
        )
        raise UnusableDevice(f"--device {name}: there is no CUDA device: {why}")
    if (device.index or 0) >= count:  # of "cuda" it is None, whatever torch's types say
        raise UnusableDevice(f"--device {name}: there are {count} CUDA devices, from cuda:0 on")
    try:
        from engine.kernels.gpu.kernels import TritonKernels
    except ImportError as error:
        raise UnusableDevice(f"--device {name} needs Triton, the extra gpu: {error}") from error
    torch.cuda.set_device(device)
    return CudaAccelerator(torch.device("cuda", torch.cuda.current_device()), TritonKernels())
