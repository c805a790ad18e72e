"""What a step needs of a device beyond torch's operations: a contract, and it for CUDA."""

import gc
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import UnusableDevice
from engine.kernels.contract import PagedKernels
from engine.kernels.products import Products
from engine.kernels.sampling import SamplingKernels
from engine.running.recorder import CudaRecorder, Recorder
from engine.running.runner import HostCopy


class Accelerator(Protocol):
    """A device with kernels and memory of its own."""

    @property
    def kernels(self) -> PagedKernels:
        """What models and attention are given."""

    @property
    def products(self) -> Products | None:
        """Who multiplies with weights that are rounded or of many experts; None: torch."""

    @property
    def drawing(self) -> SamplingKernels | None:
        """Draws on the device; None: the host's sampler does."""

    def copy_to_host(self, numbers: Tensor) -> HostCopy:
        """Start a copy of integers [n] to the host, behind what was launched; does not wait."""

    def wait(self) -> None:
        """Wait until all that was launched is done."""

    def recorder(self) -> Recorder:
        """For all graphs of one engine."""

    def memory_bytes(self) -> tuple[int, int]:
        """Free bytes, and all bytes; what torch's cache holds is not free."""

    def empty_cache(self) -> None:
        """Return what torch's caching allocator holds to the device."""


class _CudaHostCopy:
    """A copy into pinned memory of its own; torch reuses that only after the copy."""

    def __init__(self, numbers: Tensor) -> None:
        self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._host.copy_(numbers, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def read(self) -> list[int]:
        """See HostCopy."""
        self._event.synchronize()
        found: list[int] = self._host.tolist()
        return found


class CudaAccelerator:
    """One CUDA device of this process."""

    def __init__(
        self,
        device: torch.device,
        kernels: PagedKernels,
        products: Products,
        drawing: SamplingKernels,
    ) -> None:
        self._device, self.kernels = device, kernels
        self.products: Products | None = products
        self.drawing: SamplingKernels | None = drawing

    def copy_to_host(self, numbers: Tensor) -> HostCopy:
        """See Accelerator, here and below."""
        return _CudaHostCopy(numbers)

    def wait(self) -> None:
        """By the one stream that all is launched on."""
        torch.cuda.current_stream(self._device).synchronize()

    def recorder(self) -> Recorder:
        """See Accelerator."""
        return CudaRecorder(self._device)

    def memory_bytes(self) -> tuple[int, int]:
        """As the driver counts, whoever else is on the device."""
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        return free, total

    def empty_cache(self) -> None:
        """Garbage cycles are collected first: tensors in them are returned too."""
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
    if (index := device.index or 0) >= count:  # of "cuda" it is None, whatever its type says
        raise UnusableDevice(f"--device {name}: there are {count} CUDA devices, from cuda:0 on")
    try:
        from engine.kernels.gpu.kernels import TritonKernels
        from engine.kernels.gpu.products import TritonProducts
        from engine.kernels.gpu.sampling.adjusting import adjust, apply_bitmasks
        from engine.kernels.gpu.sampling.choosing import choose
        from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs
    except ImportError as error:
        raise UnusableDevice(f"--device {name} needs Triton, the extra gpu: {error}") from error
    torch.cuda.set_device(index)  # of a device without a number it does not take any
    drawing = SamplingKernels(choose, adjust, apply_bitmasks, gather_logprobs)
    numbered = torch.device("cuda", index)
    return CudaAccelerator(numbered, TritonKernels(), TritonProducts(), drawing)
