"""Settings of an engine with several ranks: checks, and each rank's device and threads."""

from dataclasses import replace

import torch

from engine.attention.kv_memory import KvShape
from engine.checkpoints.checkpoint import open_checkpoint
from engine.cores import usable_cores
from engine.errors import EngineError, UnusableCheckpoint, UnusableTier
from engine.kernels.weights import GROUP
from engine.models.choosing import AnyConfig, read_config
from engine.models.config import ModelConfig
from engine.models.shards import FLAG, check_divisible, check_groups
from engine.pooling.encoders import is_encoder
from engine.running.accelerator import read_device
from engine.settings import EngineConfig


def refuse_ranks(config: EngineConfig) -> None:
    """Raises EngineError if the engine cannot have several ranks; a cheap, early check."""
    checkpoint = open_checkpoint(config.model, config.dummy_seed)
    if is_encoder(checkpoint.config):
        raise UnusableCheckpoint(f"{FLAG}: encoders run in one process only")
    check_ranks(config, read_config(checkpoint, config.model_impl))


def check_ranks(config: EngineConfig, shape: AnyConfig) -> None:
    """Check before ranks start; raises UnusableCheckpoint, UnusableTier or EngineError."""
    told = f"{FLAG} {config.tensor_parallel_size}"
    if not isinstance(shape, ModelConfig):
        raise UnusableCheckpoint(f"{told}: transformers' own code runs in one process only")
    check_divisible(shape, config.tensor_parallel_size)
    if config.quantization == "int4":
        check_groups(shape, config.tensor_parallel_size, outputs=1, inputs=GROUP)
    for flag, asked in (
        ("--kv-offloading-size", config.kv_offloading_size),
        ("--kv-disk-path", config.kv_disk_path),
    ):
        if asked is not None:
            raise UnusableTier(f"{flag}: no tiers below the KV memory with {told}")
    device = read_device(config.device)
    if device.type == "cpu":
        return
    there = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) + config.tensor_parallel_size > there:
        raise EngineError(f"{told}: {there} devices from {config.device} on are too few")


def device_of(config: EngineConfig, rank: int) -> torch.device:
    """A rank's device: the CPU for all, or consecutive devices from `--device` on."""
    device = read_device(config.device)
    if config.tensor_parallel_size == 1 or device.type == "cpu":
        return device
    return torch.device(device.type, (device.index or 0) + rank)


def threads_of(config: EngineConfig) -> int:
    """Threads of each rank; all ranks together have as many as one process would have.

    Without --threads that is one for each usable core.
    """
    threads = config.threads or usable_cores()
    return max(1, threads // config.tensor_parallel_size)


def whole_kv(config: AnyConfig, part: KvShape, ranks: int) -> KvShape:
    """The KV shape of the whole model, with each head once, from one rank's `part`."""
    if ranks == 1 or not isinstance(config, ModelConfig) or config.latent is not None:
        return part
    kind, other = part.global_layers, config.global_heads
    if kind is not None and other is not None:
        kind = replace(kind, heads=other.num_kv_heads)
    return replace(part, heads=config.num_kv_heads, global_layers=kind)
