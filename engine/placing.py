"""Where a model's weights go, and in which form: what an engine's settings choose of it."""

import logging

import torch

from engine.checkpoints.checkpoint import Checkpoint
from engine.checkpoints.placement import Placement
from engine.checkpoints.storage import ROUNDINGS, LinearFactory, open_storage
from engine.errors import KernelsUnavailable, UnusableCheckpoint
from engine.kernels.contract import Kernels
from engine.kernels.cpu.native import CpuKernels, open_kernels
from engine.models.choosing import AnyConfig
from engine.models.config import ModelConfig
from engine.running.opening import OpenDevice
from engine.settings import EngineConfig

log = logging.getLogger(__name__)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def placement(
    config: EngineConfig,
    shape: AnyConfig,
    dtype: torch.dtype,
    device: torch.device,
    opened: OpenDevice | None,
) -> Placement:
    """The kernels and linear layers for a model.

    Raises KernelsUnavailable or UnusableCheckpoint for settings that do not go together.
    """
    return Placement(
        dtype,
        device,
        _kernels(config, dtype, device, opened),
        storage=_storage(config, shape, device, opened),
    )


def _kernels(
    config: EngineConfig, dtype: torch.dtype, device: torch.device, opened: OpenDevice | None
) -> Kernels | None:
    """The CPU kernels, if used; raises KernelsUnavailable if the settings need them."""
    if opened is not None and config.quantization in (None, *ROUNDINGS):
        return opened.accelerator.kernels
    kernels = open_kernels(config.cpu_kernels) if device.type == "cpu" else None
    if config.quantization is None or config.quantization in ROUNDINGS:
        return kernels
    wanted = f"--quantization {config.quantization}"
    if kernels is None:
        raise KernelsUnavailable(f"{wanted} needs the compiled CPU kernels")
    if dtype is not torch.bfloat16:
        raise UnusableCheckpoint(f"{wanted} goes with bfloat16, and --dtype is {dtype}")
    kernels.quantize()
    return kernels


def _storage(
    config: EngineConfig, shape: AnyConfig, device: torch.device, opened: OpenDevice | None
) -> LinearFactory | None:
    """Raises KernelsUnavailable, or UnusableCheckpoint if weights would be quantized twice."""
    packing = shape.packing if isinstance(shape, ModelConfig) else None
    if packing is not None and config.quantization is not None:
        raise UnusableCheckpoint(
            f"--quantization {config.quantization}: the checkpoint is quantized already, "
            f"in {packing.layout}"
        )
    rounding = config.quantization if config.quantization in ROUNDINGS else None
    products = kernels = None
    if opened is not None:
        products, kernels = opened.accelerator.products, opened.accelerator.kernels
    return open_storage(rounding, packing, config.cpu_kernels, device, products, kernels)


def log_quantization(config: EngineConfig, place: Placement) -> None:
    """Log the error that quantization made; raises UnusableCheckpoint if nothing was."""
    if config.quantization is None:
        return
    told = place.kernels.quantizer if isinstance(place.kernels, CpuKernels) else place.storage
    if told is None or not told.errors:
        raise UnusableCheckpoint("--quantization: no product of this model can be quantized")
    if log.isEnabledFor(logging.INFO):  # computing it waits for the device
        log.info("%s", told.summary())


def dtype_of(config: EngineConfig, checkpoint: Checkpoint) -> torch.dtype:
    """The type of weights and KV; raises UnusableCheckpoint for one that we do not run."""
    name = checkpoint.dtype if config.dtype == "auto" else config.dtype
    if name not in DTYPES:
        raise UnusableCheckpoint(f"dtype {name} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]
