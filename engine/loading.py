"""From a model's name and a few numbers to a running engine."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from engine.api import Engine, EngineInfo
from engine.attention.kv_memory import KvMemory, KvMemoryArgs
from engine.checkpoints.adapters import adapter_variant, read_adapters
from engine.checkpoints.checkpoint import Checkpoint, fingerprint_of, open_checkpoint
from engine.checkpoints.end_tokens import end_tokens
from engine.draft_loading import DraftModel, load_draft_model
from engine.errors import (
    EngineError,
    UnusableAdapter,
    UnusableCheckpoint,
    UnusableTier,
)
from engine.grammars.compiling import load_grammars
from engine.kernels.cpu.native import CpuKernels
from engine.lora.adapter import LoraAdapter
from engine.models.choosing import AnyConfig, kv_variant, load_model, read_config
from engine.models.decoder import Decoder
from engine.models.model import Model
from engine.models.shards import FLAG
from engine.placing import dtype_of, log_quantization, placement
from engine.pooling.encoder_loading import load_encoder
from engine.pooling.encoders import is_encoder
from engine.pooling.loading import load_pooler
from engine.pooling.reading import read_pooling
from engine.ranks.follower import Follower
from engine.ranks.leading import LeadingModel, LeadingRunner
from engine.ranks.links import FollowerLinks, LeaderLink
from engine.ranks.memory import LeadingMemory, SharedMemory
from engine.ranks.opening import device_of, threads_of, whole_kv
from engine.running.accelerator import Accelerator
from engine.running.kv_budget import SizedModel, log_kv_cache_size
from engine.running.opening import OpenDevice, runner_for
from engine.running.runner import Runner
from engine.scheduling.prompt_lookup import NgramDrafter
from engine.scheduling.sequence_manager import Limits
from engine.settings import LORA_FLAG, EngineConfig, read_speculative_config
from engine.sharding.group import RankGroup
from engine.sharding.shard import Shard
from engine.sizing import (
    batch_tokens,
    check_fits,
    limits_of,
    max_len_of,
    most_verified,
    num_blocks,
)
from engine.tiers.opening import check_tiers, open_tiers
from engine.torch_engine import TorchEngine

LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # torch's variable: huge pages for 2 MiB and more


def open_engine(
    config: EngineConfig, followers: FollowerLinks | None = None, *, transfer_bytes: int
) -> Engine:
    """Load the kind of engine that the checkpoint needs; raises UnusableCheckpoint.

    `followers` are the other ranks, which load their parts at the same time (`load_follower`).
    `transfer_bytes` of each device's memory are left for the KV connector.
    """
    checkpoint = open_checkpoint(config.model, config.dummy_seed)
    if not is_encoder(checkpoint.config):
        return _decoder_engine(checkpoint, config, followers, transfer_bytes=transfer_bytes)
    if config.dummy_seed is not None:
        raise UnusableCheckpoint("--load-format dummy: encoders want their own weights")
    if config.lora_modules:
        raise UnusableAdapter(f"{LORA_FLAG}: encoders have no adapters here")
    if config.quantization is not None:
        raise UnusableCheckpoint("--quantization: encoders run with the weights that they have")
    for flag, asked in (
        ("--kv-offloading-size", config.kv_offloading_size),
        ("--kv-disk-path", config.kv_disk_path),
        ("--kv-events-config", config.kv_cache_events or None),
    ):
        if asked is not None:
            raise UnusableTier(f"{flag}: encoders keep no KV")
    prepare_torch(threads_of(config))
    OpenDevice.of(config, config.device)  # refuses a device that does not exist
    device, width = torch.device(config.device), checkpoint.config.get("hidden_size")
    limits = Limits(batch_tokens(config, device, width), config.max_num_seqs)
    return load_encoder(checkpoint, config, dtype_of(config, checkpoint), limits)


def load_engine(
    config: EngineConfig,
    followers: FollowerLinks | None = None,
    accelerator: Accelerator | None = None,
    *,
    transfer_bytes: int = 0,
) -> TorchEngine:
    """An engine for a decoder: loads weights, allocates KV; raises UnusableCheckpoint.

    `accelerator` is used instead of the one that `config.device` names.
    """
    checkpoint = open_checkpoint(config.model, config.dummy_seed)
    return _decoder_engine(checkpoint, config, followers, accelerator, transfer_bytes)


def load_follower(
    config: EngineConfig,
    rank: int,
    leader: LeaderLink,
    accelerator: Accelerator | None = None,
    *,
    transfer_bytes: int,
) -> Follower:
    """Load one rank's part of the model, which follows `leader`; see `open_engine`."""
    prepare_torch(threads_of(config))
    source, device = _Source.read(config), device_of(config, rank)
    opened = OpenDevice.of(config, str(device), accelerator, transfer_bytes)
    group = RankGroup.connect(leader.store, Shard(rank, config.tensor_parallel_size), device)
    model, kept = _load_part(source, config, device, opened, group)
    assert isinstance(model, Decoder)
    memory = SharedMemory(leader.memory_fd, kept)
    limits = limits_of(config, source.shape, device)
    runner = runner_for(opened, model, memory, limits, group, eager=config.enforce_eager)
    follower = Follower(model, memory, runner, group, leader.channel)
    follower.report()
    return follower


class _Source(NamedTuple):
    """What an engine is loaded from."""

    checkpoint: Checkpoint
    shape: AnyConfig
    adapters: Sequence[LoraAdapter]

    @classmethod
    def read(cls, config: EngineConfig, checkpoint: Checkpoint | None = None) -> "_Source":
        """Read all of it but the weights."""
        checkpoint = checkpoint or open_checkpoint(config.model, config.dummy_seed)
        shape = read_config(checkpoint, config.model_impl)
        return cls(checkpoint, shape, read_adapters(config.lora_modules))


def _load_whole(
    source: _Source,
    config: EngineConfig,
    device: torch.device,
    opened: OpenDevice | None,
    followers: FollowerLinks | None,
    draft: DraftModel | None,
) -> tuple[Model, KvMemory, Runner]:
    """The model in this process alone, or the same three objects in front of all ranks."""
    limits = limits_of(config, source.shape, device)
    if config.tensor_parallel_size == 1:
        model, kept = _load_part(source, config, device, opened, None, draft)
        memory = KvMemory(*kept)
        eager = config.enforce_eager
        return model, memory, runner_for(opened, model, memory, limits, eager=eager)
    if followers is None:
        raise EngineError(f"{FLAG} {config.tensor_parallel_size}: no other ranks were started")
    group = RankGroup.connect(followers.store, Shard(0, followers.size), device)
    model, kept = _load_part(source, config, device, opened, group, draft)
    assert isinstance(model, Decoder)
    leading = LeadingMemory(*kept)
    eager = config.enforce_eager
    ours = runner_for(opened, model, leading, limits, group, eager=eager)
    runner = LeadingRunner(ours, followers)
    leading.attach(followers)
    followers.set_stall_timeout()
    group.set_stall_timeout()
    return LeadingModel(model, followers, group), leading, runner


def _load_part(
    source: _Source,
    config: EngineConfig,
    device: torch.device,
    opened: OpenDevice | None,
    group: RankGroup | None,
    draft: DraftModel | None = None,
) -> tuple[Model, KvMemoryArgs]:
    """All weights, or one rank's, and KvMemory's arguments; all ranks have as many blocks.

    So has the KV of the `draft` model, for which room is left.
    """
    checkpoint, shape, adapters = source
    dtype, limits = dtype_of(config, checkpoint), limits_of(config, shape, device)
    place = placement(config, shape, dtype, device, opened)
    place = replace(place, group=group, adapters=adapters)
    kernels, max_len = place.kernels, max_len_of(config, shape)
    model = load_model(checkpoint, shape, max_len, place)
    if isinstance(kernels, CpuKernels):
        kernels.move_to_large_pages()
    log_quantization(config, place)
    kv = model.kv_shape
    block_bytes = config.block_size * kv.numbers * dtype.itemsize

    def memory_of(blocks: int) -> KvMemory:
        return KvMemory(kv, blocks, config.block_size, dtype, device, kernels)

    sized = [SizedModel(model, memory_of, limits, most_verified(config, limits))]
    if draft is not None:
        block_bytes += draft.block_bytes
        sized.append(SizedModel(draft.model, draft.memory_of, draft.limits))
    found = None if opened is None else opened.num_blocks(sized)
    if found is None:
        blocks = num_blocks(config, max_len, block_bytes, device)
    else:
        blocks = check_fits(found, config, max_len, found * block_bytes)
    if group is not None:
        blocks = group.all_reduce_min(blocks)
    if opened is not None:
        log_kv_cache_size(blocks, config.block_size, max_len)
    return model, (kv, blocks, config.block_size, dtype, device, kernels)


def _decoder_engine(
    checkpoint: Checkpoint,
    config: EngineConfig,
    followers: FollowerLinks | None = None,
    accelerator: Accelerator | None = None,
    transfer_bytes: int = 0,
) -> TorchEngine:
    check_tiers(config)
    prepare_torch(threads_of(config))
    source, device = _Source.read(config, checkpoint), device_of(config, 0)
    shape = source.shape
    opened = OpenDevice.of(config, str(device), accelerator, transfer_bytes)
    dtype, limits = dtype_of(config, checkpoint), limits_of(config, shape, device)
    max_len = max_len_of(config, shape)
    pooling = read_pooling(checkpoint.folder, checkpoint.config)
    pooler = load_pooler(checkpoint, pooling, shape.hidden_size, device)
    draft = None
    if pooling.generates:
        draft = load_draft_model(config, checkpoint, limits, device, opened)
    model, memory, runner = _load_whole(source, config, device, opened, followers, draft)
    kv = whole_kv(shape, model.kv_shape, config.tensor_parallel_size)
    variant = {
        **kv_variant(shape, max_len, config.quantization),
        **adapter_variant(source.adapters),
    }
    parts = checkpoint.made_of(variant)
    info = EngineInfo(
        fingerprint_of(parts),
        max_len,
        config.block_size,
        str(dtype).removeprefix("torch."),
        kv.heads,
        end_tokens(checkpoint),
        pooling,
        config.enable_prefix_caching,
        *(kv.layers, kv.parts, kv.width),
        made_of=parts,
        adapters=tuple(one.name for one in source.adapters),
    )
    engine = TorchEngine.build(info, model, memory, limits, pooler=pooler, runner=runner)
    if opened is not None:
        engine.sampler.warm(device)
    tiers = open_tiers(config, info, memory)
    if tiers is not None:
        engine.attach_tiers(tiers)
    if config.kv_cache_events:
        engine.log_cache_events()
    if pooling.generates:
        vocabulary, ends = engine.sampler.vocabulary, info.eos_token_ids
        engine.sampler.grammars = load_grammars(checkpoint.folder, vocabulary, ends)
        _add_drafter(engine, config, opened, draft)
    return engine


def _add_drafter(
    engine: TorchEngine,
    config: EngineConfig,
    opened: OpenDevice | None,
    draft: DraftModel | None,
) -> None:
    """Set what drafts, if anything does: a loaded draft model, or prompt lookup."""
    scheduler = engine.scheduler
    if draft is not None:
        scheduler.drafter = draft.drafter(opened, engine.memory.num_blocks, engine.sampler)
        scheduler.most_drafting = draft.most_drafting
    elif config.speculative_config is not None:
        settings = read_speculative_config(config.speculative_config)
        scheduler.drafter = NgramDrafter(settings)
        scheduler.most_drafting = settings.disable_by_batch_size


def prepare_torch(threads: int) -> None:
    """Set how many threads torch has, and huge pages for large allocations.

    Every step reads weights and KV from end to end; with small pages, address translation takes
    a quarter of that time. This has no effect once the process has made a tensor.
    """
    os.environ.setdefault(LARGE_PAGES, "1")
    torch.set_num_threads(threads)
