"""From a model's name and a few numbers to a running engine."""

import logging
import os

import torch

from engine.api import Engine, EngineInfo
from engine.attention.kv_memory import Kept, KvMemory
from engine.errors import EngineError, NoKernels, UnusableCheckpoint, UnusableTier
from engine.free_memory import free_memory_bytes
from engine.grammars.compiling import load_grammars
from engine.kernels.cpu.native import CpuKernels, open_kernels
from engine.models.checkpoint import Checkpoint, open_checkpoint
from engine.models.choosing import AnyConfig, kv_variant, load_model, read_config
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.model import Model, Shape
from engine.models.placement import Placement
from engine.models.shards import FLAG
from engine.models.storage import ROUNDINGS, Storage, open_storage
from engine.pooling.encoder_loading import load_encoder
from engine.pooling.encoders import is_encoder
from engine.pooling.loading import load_pooler
from engine.pooling.reading import read_pooling
from engine.ranks.crew import Crew, Post
from engine.ranks.follower import Follower
from engine.ranks.leading import LeadingModel, LeadingRunner
from engine.ranks.memory import LeadingMemory, SharedMemory
from engine.ranks.opening import check_ranks, device_of, threads_of, whole_kv
from engine.running.runner import PlainRunner, Runner
from engine.scheduling.drafting import NgramDrafter
from engine.scheduling.room import Limits
from engine.settings import EngineConfig, read_speculative_config
from engine.sharding.group import Group
from engine.sharding.share import Share
from engine.tiers.opening import check_tiers, open_tiers
from engine.torch_engine import TorchEngine

log = logging.getLogger(__name__)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_BATCH_TOKENS, BATCH_TOKENS = 256, 2048
NARROW = 512  # hidden size up to which a batch on a CPU may be twice as long
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # torch's name for them, for memory from 2 MiB on
KV_SHARE_OF_FREE_MEMORY = 0.25


def open_engine(config: EngineConfig, crew: Crew | None = None) -> Engine:
    """Whatever kind of engine the checkpoint wants; raises UnusableCheckpoint.

    `crew`: the other ranks, which load their parts at the same time (`load_follower`).
    """
    checkpoint = open_checkpoint(config.model, config.dummy_seed)
    if not is_encoder(checkpoint.config):
        return _decoder_engine(checkpoint, config, crew)
    if config.dummy_seed is not None:
        raise UnusableCheckpoint("--load-format dummy: encoders want their own weights")
    if config.quantization is not None:
        raise UnusableCheckpoint("--quantization: encoders run with the weights that they have")
    for flag, asked in (
        ("--kv-offloading-size", config.kv_offloading_size),
        ("--kv-disk-path", config.kv_disk_path),
    ):
        if asked is not None:
            raise UnusableTier(f"{flag}: encoders keep no KV")
    prepare_torch(config.threads)
    said = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "float32"
    device, width = torch.device(config.device), checkpoint.config.get("hidden_size")
    batch_tokens = config.max_num_batched_tokens or _batch_tokens(device, width)
    limits = Limits(batch_tokens, config.max_num_seqs)
    return load_encoder(checkpoint, config, _dtype(config.dtype, said), limits)


def load_engine(config: EngineConfig, crew: Crew | None = None) -> TorchEngine:
    """Of a decoder: read the checkpoint and take the memory; raises UnusableCheckpoint."""
    return _decoder_engine(open_checkpoint(config.model, config.dummy_seed), config, crew)


def refuse_ranks(config: EngineConfig) -> None:
    """Raises EngineError where the engine cannot be shared out; cheap, before any is begun."""
    checkpoint = open_checkpoint(config.model, config.dummy_seed)
    if is_encoder(checkpoint.config):
        raise UnusableCheckpoint(f"{FLAG}: encoders run in one process only")
    check_ranks(config, read_config(checkpoint, config.model_impl))


def load_follower(config: EngineConfig, rank: int, post: Post) -> Follower:
    """A rank's part, for the leader at the other end of `post`; as `load_engine`."""
    prepare_torch(threads_of(config))
    checkpoint = open_checkpoint(config.model, config.dummy_seed)
    shape, device = read_config(checkpoint, config.model_impl), device_of(config, rank)
    group = Group.meet(post.store, Share(rank, config.tensor_parallel_size), device)
    model, kept = _load_part(checkpoint, config, shape, device, group)
    assert isinstance(model, Decoder)
    memory = SharedMemory(post.memory_fd, kept)
    runner = PlainRunner(model, memory)
    follower = Follower(model, memory, runner, group, post.channel)
    follower.report()
    return follower


def _load_whole(
    checkpoint: Checkpoint,
    config: EngineConfig,
    shape: AnyConfig,
    device: torch.device,
    crew: Crew | None,
) -> tuple[Model, KvMemory, Runner]:
    """In one process, or with the others' parts behind the same three."""
    if config.tensor_parallel_size == 1:
        model, kept = _load_part(checkpoint, config, shape, device, None)
        memory = KvMemory(*kept)
        return model, memory, PlainRunner(model, memory)
    if crew is None:
        raise EngineError(f"{FLAG} {config.tensor_parallel_size}: no other ranks were started")
    group = Group.meet(crew.store, Share(0, crew.size), device)
    model, kept = _load_part(checkpoint, config, shape, device, group)
    assert isinstance(model, Decoder)
    leading = LeadingMemory(*kept)
    leading.meet(crew)
    crew.go()
    group.go()
    runner = LeadingRunner(PlainRunner(model, leading), crew)
    return LeadingModel(model, crew, group), leading, runner


def _load_part(
    checkpoint: Checkpoint,
    config: EngineConfig,
    shape: AnyConfig,
    device: torch.device,
    group: Group | None,
) -> tuple[Model, Kept]:
    """All weights, or one rank's, and of what KvMemory is made; ranks have as many blocks."""
    dtype, max_len = _dtype(config.dtype, shape.dtype), _max_len(config, shape)
    kernels = _kernels(config, dtype, device)
    storage = _storage(config, shape, device)
    place = Placement(dtype, device, kernels, group, storage)
    model = load_model(checkpoint, shape, max_len, place)
    _tell_of_quantization(config, place)
    kv = model.kv_shape
    block_bytes = config.block_size * kv.numbers * dtype.itemsize
    blocks = _num_blocks(config, max_len, block_bytes, device)
    if group is not None:
        blocks = group.least(blocks)
    return model, (kv, blocks, config.block_size, dtype, device, kernels)


def _decoder_engine(
    checkpoint: Checkpoint, config: EngineConfig, crew: Crew | None
) -> TorchEngine:
    check_tiers(config)
    prepare_torch(threads_of(config))
    shape, device = read_config(checkpoint, config.model_impl), device_of(config, 0)
    dtype, max_len = _dtype(config.dtype, shape.dtype), _max_len(config, shape)
    pooling = read_pooling(checkpoint.folder, checkpoint.config)
    pooler = load_pooler(checkpoint, pooling, shape.hidden_size, device)
    model, memory, runner = _load_whole(checkpoint, config, shape, device, crew)
    kv = whole_kv(shape, model.kv_shape, config.tensor_parallel_size)
    info = EngineInfo(
        checkpoint.fingerprint(kv_variant(shape, max_len) + (config.quantization or "")),
        max_len,
        config.block_size,
        str(dtype).removeprefix("torch."),
        kv.heads,
        checkpoint.eos_token_ids,
        pooling,
        config.enable_prefix_caching,
        kv.layers,
        kv.parts,
        kv.width,
    )
    batch_tokens = config.max_num_batched_tokens or _batch_tokens(device, shape.hidden_size)
    limits = Limits(batch_tokens, config.max_num_seqs, max_len)
    engine = TorchEngine.build(info, model, memory, limits, pooler=pooler, runner=runner)
    tiers = open_tiers(config, info, memory)
    if tiers is not None:
        engine.put_below(tiers)
    if config.speculative_config is not None:
        foretell = read_speculative_config(config.speculative_config)
        engine.scheduler.drafter = NgramDrafter(foretell)
    if info.pooling.generates:
        engine.sampler.grammars = load_grammars(
            checkpoint.folder, engine.sampler.vocabulary, info.eos_token_ids
        )
    return engine


def prepare_torch(threads: int | None) -> None:
    """Its threads, None: one for each core; and large pages for all that is large.

    Weights and KV are read from end to end by every step, and in small pages finding each page
    takes a quarter of the time. Too late for a process that has made a tensor before.
    """
    os.environ.setdefault(LARGE_PAGES, "1")
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))


def _kernels(
    config: EngineConfig, dtype: torch.dtype, device: torch.device
) -> CpuKernels | None:
    """Raises NoKernels where what is demanded needs them."""
    kernels = open_kernels(config.cpu_kernels) if device.type == "cpu" else None
    if config.quantization is None or config.quantization in ROUNDINGS:
        return kernels
    wanted = f"--quantization {config.quantization}"
    if kernels is None:
        raise NoKernels(f"{wanted} needs the compiled CPU kernels")
    if dtype is not torch.bfloat16:
        raise UnusableCheckpoint(f"{wanted} goes with bfloat16, and --dtype is {dtype}")
    kernels.quantize()
    return kernels


def _storage(config: EngineConfig, shape: AnyConfig, device: torch.device) -> Storage | None:
    """Raises NoKernels, and UnusableCheckpoint where weights would be rounded twice."""
    packing = shape.packing if isinstance(shape, ModelConfig) else None
    if packing is not None and config.quantization is not None:
        raise UnusableCheckpoint(
            f"--quantization {config.quantization}: the checkpoint is quantized already, "
            f"in {packing.layout}"
        )
    rounding = config.quantization if config.quantization in ROUNDINGS else None
    return open_storage(rounding, packing, config.cpu_kernels, device)


def _tell_of_quantization(config: EngineConfig, place: Placement) -> None:
    """What it cost, or that there was nothing to quantize."""
    if config.quantization is None:
        return
    kernels = place.kernels
    told = kernels.quantizer if isinstance(kernels, CpuKernels) else place.storage
    if told is None or not told.errors:
        raise UnusableCheckpoint("--quantization: no product of this model can be quantized")
    log.info("%s", told.summary())


def _batch_tokens(device: torch.device, hidden_size: int | None) -> int:
    """As many as keep the device's arithmetic busy: more would only make others wait.

    A narrow model's products are too small to do so with fewer, and over before anybody waits.
    """
    if device.type != "cpu":
        return BATCH_TOKENS
    narrow = hidden_size is not None and hidden_size <= NARROW
    return CPU_BATCH_TOKENS * 2 if narrow else CPU_BATCH_TOKENS


def _dtype(wanted: str, said: str) -> torch.dtype:
    name = said if wanted == "auto" else wanted
    if name not in DTYPES:
        raise UnusableCheckpoint(f"dtype {name} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _max_len(config: EngineConfig, model: Shape) -> int:
    wanted = config.max_model_len or model.max_positions
    if wanted > model.max_positions:
        raise UnusableCheckpoint(
            f"--max-model-len {wanted} is more than the model's {model.max_positions} positions"
        )
    return wanted


def _num_blocks(
    config: EngineConfig, max_len: int, block_bytes: int, device: torch.device
) -> int:
    """Enough for every seat at full length, within the memory; at least one such sequence."""
    per_sequence = -(-max_len // config.block_size)
    budget = config.kv_cache_memory_bytes
    if budget is None:
        budget = int(_free_memory_bytes(device) * KV_SHARE_OF_FREE_MEMORY)
        if device.type == "cpu":
            budget //= config.tensor_parallel_size
    blocks = min(per_sequence * config.max_num_seqs, budget // block_bytes)
    if blocks < per_sequence:
        raise UnusableCheckpoint(
            f"{budget} bytes of KV hold {blocks * config.block_size} tokens, "
            f"one sequence of --max-model-len {max_len} needs more"
        )
    return blocks


def _free_memory_bytes(device: torch.device) -> int:
    """Of the device where it has memory of its own that we know to ask for."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return free
    return free_memory_bytes()
