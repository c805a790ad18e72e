"""What a step needs of a device beyond torch's operations; for CUDA, and to be stood in for."""

import gc
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.errors import UnusableDevice
from engine.kernels.contract import PagedKernels
from engine.kernels.products import Products
from engine.kernels.searching import Search
from engine.kernels.telling import Tell
from engine.running.graphs import CudaRecorder, Recorder
from engine.running.penalising import Adjust
from engine.running.runner import Brought


class Choose(Protocol):
    """A token for each row of logits: temperature, truncation, noise, and the largest."""

    def __call__(  # noqa: PLR0913  as the kernel has it
        self,
        logits: Tensor,
        temperatures: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        keys: Tensor,
        *,
        out: Tensor,
        search: Search,
    ) -> Tensor:
        """`logits` [rows, vocabulary] float32; the others have a number, keys two, for each.

        `out` [rows] int64 is written to. Temperature 0 takes the largest. `search` is what the
        rows ask for, or further.
        """


class DrawingKernels(NamedTuple):
    """All that is done with logits on the device."""

    choose: Choose
    adjust: Adjust
    tell: Tell


class Accelerator(Protocol):
    """A device with kernels and memory of its own."""

    @property
    def kernels(self) -> PagedKernels:
        """What models and attention are given."""

    @property
    def products(self) -> Products | None:
        """Who multiplies with weights that are rounded or of many experts; None: torch."""

    @property
    def choose(self) -> Choose | None:
        """Draws on the device; None: the host's sampler does."""

    @property
    def adjust(self) -> Adjust:
        """Penalties on the device, for what is drawn there."""

    @property
    def tell(self) -> Tell:
        """Log-probabilities of what was drawn there."""

    def bring(self, numbers: Tensor) -> Brought:
        """Send whole numbers [n] to the host, behind what was launched; nobody waits."""

    def recorder(self) -> Recorder:
        """For all graphs of one engine."""

    def memory_bytes(self) -> tuple[int, int]:
        """Free, and in all; what torch keeps for later is not free."""

    def forget(self) -> None:
        """Give back what torch keeps for later."""


class _BroughtByCuda:
    """Into pinned memory of its own; torch gives it away again only after the copy."""

    def __init__(self, numbers: Tensor) -> None:
        self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._host.copy_(numbers, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> None:
        """See Brought."""
        self._event.synchronize()

    def read(self) -> list[int]:
        """See Brought."""
        self.wait()
        found: list[int] = self._host.tolist()
        return found


class CudaAccelerator:
    """One CUDA device of this process."""

    def __init__(
        self,
        device: torch.device,
        kernels: PagedKernels,
        products: Products,
        drawing: DrawingKernels,
    ) -> None:
        self._device, self.kernels = device, kernels
        self.products: Products | None = products
        self.choose: Choose | None = drawing.choose
        self.adjust: Adjust = drawing.adjust
        self.tell: Tell = drawing.tell

    def bring(self, numbers: Tensor) -> Brought:
        """See Accelerator, here and below."""
        return _BroughtByCuda(numbers)

    def recorder(self) -> Recorder:
        """See Accelerator."""
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
        from engine.kernels.gpu.products import TritonProducts
        from engine.kernels.gpu.sampling.adjusting import adjust
        from engine.kernels.gpu.sampling.choosing import choose
        from engine.kernels.gpu.sampling.telling import tell
    except ImportError as error:
        raise UnusableDevice(f"--device {name} needs Triton, the extra gpu: {error}") from error
    torch.cuda.set_device(device)
    device = torch.device("cuda", torch.cuda.current_device())
    drawing = DrawingKernels(choose, adjust, tell)
    return CudaAccelerator(device, TritonKernels(), TritonProducts(), drawing)
