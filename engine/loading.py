"""From a model's name and a few numbers to a running engine."""

import os
from collections.abc import Mapping

import torch

from engine.api import Engine, EngineInfo
from engine.attention.kv_memory import KvShape, LayerKind
from engine.checkpoints.checkpoint import Checkpoint, fingerprint_of, open_checkpoint
from engine.checkpoints.end_tokens import end_tokens
from engine.draft_loading import add_drafter, load_draft_model
from engine.errors import UnusableAdapter, UnusableCheckpoint, UnusableTier
from engine.grammars.compiling import load_grammars
from engine.head_loading import open_head_runner
from engine.model_loading import Source, load_part, load_whole
from engine.models.choosing import kv_variant
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.model import ModelShape
from engine.placing import dtype_of
from engine.pooling.encoder_loading import load_encoder
from engine.pooling.encoders import is_encoder
from engine.pooling.loading import load_pooler
from engine.pooling.reading import read_pooling
from engine.ranks.follower import Follower
from engine.ranks.links import FollowerLinks, LeaderLink
from engine.ranks.memory import SharedMemory
from engine.ranks.opening import device_of, threads_of, whole_kv
from engine.running.accelerator import Accelerator
from engine.running.opening import OpenDevice, RunnerOpener
from engine.scheduling.sequence_manager import Limits
from engine.settings import LORA_FLAG, EngineConfig
from engine.sharding.group import RankGroup
from engine.sharding.shard import Shard
from engine.sizing import batch_tokens, limits_of, max_len_of
from engine.state_settings import info_of, settings_for
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
        ("--kv-cache-dtype", config.kv_cache_dtype != "auto" or None),
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
    source, device = Source.read(config), device_of(config, rank)
    config = settings_for(config, source.shape, dtype_of(config, source.checkpoint))
    opened = OpenDevice.of(config, str(device), accelerator, transfer_bytes)
    group = RankGroup.connect(leader.store, Shard(rank, config.tensor_parallel_size), device)
    model, kept = load_part(source, config, device, opened, group)
    assert isinstance(model, Decoder)
    memory = SharedMemory(leader.memory_fd, kept)
    limits = limits_of(config, source.shape, device)
    opener = RunnerOpener(opened, limits, group, config.enforce_eager)
    runner = opener.open(model, memory)
    head = open_head_runner(opener, model, memory, runner)
    follower = Follower(model, memory, runner, group, leader.channel, head)
    follower.report()
    return follower


def _decoder_engine(
    checkpoint: Checkpoint,
    config: EngineConfig,
    followers: FollowerLinks | None = None,
    accelerator: Accelerator | None = None,
    transfer_bytes: int = 0,
) -> TorchEngine:
    check_tiers(config)
    prepare_torch(threads_of(config))
    source, device = Source.read(config, checkpoint), device_of(config, 0)
    shape = source.shape
    config = settings_for(config, shape, dtype_of(config, checkpoint))
    opened = OpenDevice.of(config, str(device), accelerator, transfer_bytes)
    dtype, limits = dtype_of(config, checkpoint), limits_of(config, shape, device)
    max_len = max_len_of(config, shape)
    pooling = read_pooling(checkpoint.folder, checkpoint.config)
    pooler = load_pooler(checkpoint, pooling, shape.hidden_size, device)
    draft = None
    if pooling.generates:
        draft = load_draft_model(config, checkpoint, limits, device, opened)
    model, memory, runner, head = load_whole(source, config, device, opened, followers, draft)
    kv = whole_kv(shape, memory.shape, config.tensor_parallel_size)
    variant = {
        **kv_variant(shape, max_len, config.quantization),
        **_stored_variant(kv, dtype, model.config),
        **source.variant,
    }
    parts = checkpoint.made_of(variant)
    info = EngineInfo(
        fingerprint_of(parts),
        max_len,
        config.block_size,
        _name_of(kv.stored or dtype),
        _name_of(dtype),
        kv.heads,
        end_tokens(checkpoint),
        pooling,
        config.enable_prefix_caching,
        *(kv.layers, kv.parts, kv.width),
        *_global_layers(kv),
        made_of=parts,
        adapters=tuple(one.name for one in source.adapters),
        state_blocks=memory.state_blocks,
        state=info_of(memory.shape.state, config.tensor_parallel_size),
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
        add_drafter(engine, config, opened, draft, head)
    return engine


def _global_layers(kv: KvShape) -> tuple[int, int, int]:
    """How many layers of the second kind there are, and the number and width of their heads."""
    kind = kv.global_layers or LayerKind(0, 0, 0)
    return kind.layers, kind.heads, kind.width


def _stored_variant(kv: KvShape, dtype: torch.dtype, config: ModelShape) -> Mapping[str, str]:
    """Rounded KV is of use to a model that computes in the same type, and divides by the same
    scales; its layout does not say which.
    """
    if kv.stored is None:
        return {}
    scaled = isinstance(config, ModelConfig) and config.scales_kv
    told = f"{_name_of(kv.stored)} of {_name_of(dtype)}{', scaled' if scaled else ''}"
    return {"kv_cache_dtype": told}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def prepare_torch(threads: int) -> None:
    """Set how many threads torch has, and huge pages for large allocations.

    Every step reads weights and KV from end to end; with small pages, address translation takes
    a quarter of that time. This has no effect once the process has made a tensor.
    """
    os.environ.setdefault(LARGE_PAGES, "1")
    torch.set_num_threads(threads)
