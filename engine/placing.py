"""Where a model's weights go, and in which form: what an engine's settings choose of it."""

import logging

import torch

from engine.checkpoints.checkpoint import Checkpoint
from engine.checkpoints.cpu_storage import cpu_storage
from engine.checkpoints.packing import Packing
from engine.checkpoints.placement import Placement
from engine.checkpoints.storage import FP8_SINCE, ROUNDINGS, LinearFactory, device_storage
from engine.errors import KernelsUnavailable, UnusableCheckpoint
from engine.kernels.contract import Kernels
from engine.kernels.cpu.native import CpuKernels, open_kernels
from engine.kernels.products import TorchProducts
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
    kernels, scales = _kernels(config, dtype, device, opened), config.kv_cache_dtype != "auto"
    rounding = config.quantization if config.quantization in ROUNDINGS else None
    packing = _packing(config, shape)
    if opened is not None and (products := opened.accelerator.products) is not None:
        quantizing = opened.accelerator.kernels
        storage = device_storage(rounding, packing, device, products, quantizing)
        return Placement(dtype, device, kernels, storage=storage, kv_scales=scales)
    if rounding is None and packing is None:
        return Placement(dtype, device, kernels, kv_scales=scales)
    if config.cpu_kernels == "torch":
        storage = LinearFactory(TorchProducts(), rounding)
    else:
        ours = kernels if isinstance(kernels, CpuKernels) else None
        storage = cpu_storage(rounding, dtype, ours)
    return Placement(dtype, device, kernels, storage=storage, kv_scales=scales)


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


def _packing(config: EngineConfig, shape: AnyConfig) -> Packing | None:
    """The checkpoint's; raises UnusableCheckpoint if weights would be quantized twice."""
    packing = shape.packing if isinstance(shape, ModelConfig) else None
    if packing is not None and config.quantization is not None:
        raise UnusableCheckpoint(
            f"--quantization {config.quantization}: the checkpoint is quantized already, "
            f"in {packing.layout}"
        )
    return packing


def log_quantization(config: EngineConfig, place: Placement) -> None:
    """Log the error that quantization made; raises UnusableCheckpoint if nothing was."""
    if config.quantization is None:
        return
    eight = place.kernels.quantizer if isinstance(place.kernels, CpuKernels) else None
    told = place.storage if eight is None else eight
    if told is None or not told.errors:
        raise UnusableCheckpoint("--quantization: no product of this model can be quantized")
    if log.isEnabledFor(logging.INFO):  # computing it waits for the device
        log.info("%s", told.summary())


def check_kv_dtype(config: EngineConfig, device: torch.device) -> None:
    """Raises KernelsUnavailable if the device cannot convert the numbers of KV memory."""
    if config.kv_cache_dtype == "auto" or device.type != "cuda":
        return
    if torch.cuda.get_device_capability(device) < FP8_SINCE:
        name = torch.cuda.get_device_name(device)
        raise KernelsUnavailable(
            f"--kv-cache-dtype {config.kv_cache_dtype}: {name} has no instructions for it"
        )


def dtype_of(config: EngineConfig, checkpoint: Checkpoint) -> torch.dtype:
    """The type that a model computes in; raises UnusableCheckpoint for one that is not ours."""
    name = checkpoint.dtype if config.dtype == "auto" else config.dtype
    if name not in DTYPES:
        raise UnusableCheckpoint(f"dtype {name} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]
