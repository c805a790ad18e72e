"""What a step needs of a device beyond torch's operations: the contract, and CUDA's version."""

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
        """The kernels for models and attention."""

    @property
    def products(self) -> Products | None:
        """Products with quantized weights and with experts' weights; None: torch does them."""

    @property
    def drawing(self) -> SamplingKernels | None:
        """Kernels that sample on the device; None: the host's sampler does it."""

    def copy_to_host(self, numbers: Tensor) -> HostCopy:
        """Queue a copy of integers [n] to the host, behind earlier launches; does not wait."""

    def wait(self) -> None:
        """Wait until the device has finished everything that was launched."""

    def recorder(self) -> Recorder:
        """A new recorder, for all graphs of one engine."""

    def memory_bytes(self) -> tuple[int, int]:
        """Free and total bytes; memory held by torch's caching allocator is not free."""

    def empty_cache(self) -> None:
        """Return the memory that torch's caching allocator holds to the device."""


class _CudaHostCopy:
    """A copy into its own pinned memory, which torch reuses only after the copy."""

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
        """See Accelerator. Everything is launched on one stream."""
        torch.cuda.current_stream(self._device).synchronize()

    def recorder(self) -> Recorder:
        """See Accelerator."""
        return CudaRecorder(self._device)

    def memory_bytes(self) -> tuple[int, int]:
        """See Accelerator. The driver's numbers, which include other processes."""
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        return free, total

    def empty_cache(self) -> None:
        """See Accelerator. Collects garbage cycles first, to free tensors in them as well."""
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


def read_device(name: str) -> torch.device:
    """The device that `--device` names, whether it exists or not; raises UnusableDevice."""
    try:
        return torch.device(name)
    except RuntimeError as error:
        known = "cpu, or a CUDA device: cuda, cuda:1"
        raise UnusableDevice(f"--device {name}: no device has this name; {known}") from error


def _must_exist(name: str, device: torch.device) -> None:
    """Raises UnusableDevice, with the first line of what torch says: a list of all its devices
    follows.
    """
    try:
        torch.empty(0, device=device).cpu()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise UnusableDevice(f"--device {name}: {reason}") from error


def open_accelerator(name: str) -> Accelerator | None:
    """Open the device that `--device` names; None if torch alone runs there, as on a CPU.

    Raises UnusableDevice.
    """
    device = read_device(name)
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        _must_exist(name, device)
        return None
    count = torch.cuda.device_count()
    if not count:
        built = torch.version.cuda
        why = (
            "torch is built without it" if built is None else f"torch (CUDA {built}) sees none"
        )
        raise UnusableDevice(f"--device {name}: there is no CUDA device: {why}")
    if (index := device.index or 0) >= count:  # None for "cuda", whatever its type says
        raise UnusableDevice(f"--device {name}: there are {count} CUDA devices, from cuda:0 on")
    try:
        from engine.kernels.gpu.kernels import TritonKernels
        from engine.kernels.gpu.products import TritonProducts
        from engine.kernels.gpu.sampling.adjusting import adjust, apply_bitmasks
        from engine.kernels.gpu.sampling.choosing import choose
        from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs
    except ImportError as error:
        raise UnusableDevice(f"--device {name} needs Triton, the extra gpu: {error}") from error
    torch.cuda.set_device(index)  # by number: it refuses a device without an index
    drawing = SamplingKernels(choose, adjust, apply_bitmasks, gather_logprobs)
    numbered = torch.device("cuda", index)
    return CudaAccelerator(numbered, TritonKernels(), TritonProducts(), drawing)
