"""Loads a model's weights and allocates its KV memory: all of it, or one rank's part."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from engine.attention.kv_memory import KvMemory, KvMemoryArgs
from engine.checkpoints.adapters import adapter_variant, read_adapters
from engine.checkpoints.checkpoint import Checkpoint, open_checkpoint
from engine.draft_loading import DraftModel
from engine.errors import EngineError
from engine.head_loading import HeadSource, open_head_runner, read_head, with_head
from engine.kernels.cpu.native import CpuKernels
from engine.lora.adapter import LoraAdapter
from engine.models.choosing import AnyConfig, load_model, read_config
from engine.models.decoder import Decoder
from engine.models.family import generates
from engine.models.model import Model
from engine.models.shards import FLAG
from engine.placing import check_kv_dtype, dtype_of, log_quantization, placement
from engine.ranks.leading import LeadingHeadRunner, LeadingModel, LeadingRunner
from engine.ranks.links import FollowerLinks
from engine.ranks.memory import LeadingMemory
from engine.running.head_runner import HeadRunner
from engine.running.kv_budget import SizedModel, log_kv_cache_size
from engine.running.opening import OpenDevice, RunnerOpener
from engine.running.runner import Runner
from engine.settings import EngineConfig
from engine.sharding.group import RankGroup
from engine.sharding.shard import Shard
from engine.sizing import (
    check_fits,
    kv_shape_of,
    limits_of,
    max_len_of,
    most_verified,
    num_blocks,
)


class Source(NamedTuple):
    """What an engine is loaded from."""

    checkpoint: Checkpoint
    shape: AnyConfig
    adapters: Sequence[LoraAdapter]
    head: HeadSource | None

    @classmethod
    def read(cls, config: EngineConfig, checkpoint: Checkpoint | None = None) -> "Source":
        """Read all of it but the weights."""
        checkpoint = checkpoint or open_checkpoint(config.model, config.dummy_seed)
        shape = read_config(checkpoint, config.model_impl)
        head = read_head(config, shape) if generates(checkpoint.config) else None
        if head is not None:
            shape = head.shape
        return cls(checkpoint, shape, read_adapters(config.lora_modules), head)

    @property
    def variant(self) -> Mapping[str, str]:
        """What the fingerprint has beside the model's checkpoint and the engine's settings."""
        head = {} if self.head is None else self.head.variant
        return {**adapter_variant(self.adapters), **head}


class LoadedModel(NamedTuple):
    """A model with its weights and KV memory, and what runs it, and its draft head if any."""

    model: Model
    memory: KvMemory
    runner: Runner
    head: HeadRunner | None


def load_whole(
    source: Source,
    config: EngineConfig,
    device: torch.device,
    opened: OpenDevice | None,
    followers: FollowerLinks | None,
    draft: DraftModel | None,
) -> LoadedModel:
    """The model in this process alone, or the same objects in front of all ranks."""
    limits = limits_of(config, source.shape, device)
    if config.tensor_parallel_size == 1:
        model, kept = load_part(source, config, device, opened, None, draft)
        memory = KvMemory(*kept)
        opener = RunnerOpener(opened, limits, None, config.enforce_eager)
        runner = opener.open(model, memory)
        head = open_head_runner(opener, model, memory, runner)
        return LoadedModel(model, memory, runner, head)
    if followers is None:
        raise EngineError(f"{FLAG} {config.tensor_parallel_size}: no other ranks were started")
    group = RankGroup.connect(followers.store, Shard(0, followers.size), device)
    model, kept = load_part(source, config, device, opened, group, draft)
    assert isinstance(model, Decoder)
    leading = LeadingMemory(*kept)
    opener = RunnerOpener(opened, limits, group, config.enforce_eager)
    ours = opener.open(model, leading)
    head = open_head_runner(opener, model, leading, ours)
    runner = LeadingRunner(ours, followers)
    leading.attach(followers)
    followers.set_stall_timeout()
    group.set_stall_timeout()
    return LoadedModel(
        LeadingModel(model, followers, group),
        leading,
        runner,
        None if head is None else LeadingHeadRunner(head, followers),
    )


def load_part(
    source: Source,
    config: EngineConfig,
    device: torch.device,
    opened: OpenDevice | None,
    group: RankGroup | None,
    draft: DraftModel | None = None,
) -> tuple[Model, KvMemoryArgs]:
    """All weights, or one rank's, and KvMemory's arguments; all ranks have as many blocks.

    So has the KV of the `draft` model, for which room is left.
    """
    checkpoint, shape, adapters, head = source
    dtype, limits = dtype_of(config, checkpoint), limits_of(config, shape, device)
    check_kv_dtype(config, device)
    place = placement(config, shape, dtype, device, opened)
    place = replace(place, group=group, adapters=adapters)
    kernels, max_len = place.kernels, max_len_of(config, shape)
    model = load_model(checkpoint, shape, max_len, place)
    if head is not None and isinstance(model, Decoder):
        model = with_head(model, head, config, opened, group, limits)
    if isinstance(kernels, CpuKernels):
        kernels.move_to_large_pages()
    log_quantization(config, place)
    kv = kv_shape_of(model, config)
    block_bytes = config.block_size * kv.token_bytes(dtype)
    state = 0 if kv.state is None else kv.state.blocks(block_bytes)

    def memory_of(blocks: int) -> KvMemory:
        return KvMemory(kv, blocks, config.block_size, dtype, device, kernels)

    sized = [SizedModel(model, memory_of, limits, most_verified(config, limits))]
    if isinstance(model, Decoder) and model.draft_head is not None:
        sized.append(SizedModel(model.draft_head, memory_of, limits, own_memory=False))
    if draft is not None:
        block_bytes += draft.block_bytes
        sized.append(SizedModel(draft.model, draft.memory_of, draft.limits))
    blocks = _num_blocks(config, max_len, (block_bytes, state), device, opened, sized)
    if group is not None:
        blocks = group.all_reduce_min(blocks)
    if opened is not None:
        log_kv_cache_size(blocks, config.block_size, max_len, state)
    return model, (kv, blocks, config.block_size, dtype, device, kernels)


def _num_blocks(
    config: EngineConfig,
    max_len: int,
    sizes: tuple[int, int],
    device: torch.device,
    opened: OpenDevice | None,
    sized: Sequence[SizedModel],
) -> int:
    """KV blocks: what a device has room for beside these models, or what the host has.

    `sizes` are the bytes of a block, and the blocks of a sequence's state.
    """
    found = None if opened is None else opened.num_blocks(sized)
    if found is None:
        return num_blocks(config, max_len, *sizes, device)
    return check_fits(found, config, max_len, sizes[1], found * sizes[0])
