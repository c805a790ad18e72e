"""The sizes of an engine: its longest sequence, its largest batch, its KV memory."""

from dataclasses import replace

import torch

from engine.attention.kv_memory import KvShape
from engine.errors import UnusableCheckpoint
from engine.free_memory import free_memory_bytes
from engine.kernels.rows import E4M3
from engine.models.model import Model, ModelShape
from engine.scheduling.sequence_manager import Limits
from engine.settings import EngineConfig, read_speculative_config

CPU_BATCH_TOKENS, BATCH_TOKENS = 256, 2048
NARROW = 512  # hidden size up to which a batch on a CPU may be twice as long
KV_SHARE_OF_FREE_MEMORY = 0.25
STORED_TYPES = {"auto": None, "fp8": E4M3, "fp8_e4m3": E4M3}


def limits_of(config: EngineConfig, shape: ModelShape, device: torch.device) -> Limits:
    """The limits of a decoder's batches and sequences; raises UnusableCheckpoint."""
    tokens = batch_tokens(config, device, shape.hidden_size)
    return Limits(tokens, config.max_num_seqs, max_len_of(config, shape))


def batch_tokens(config: EngineConfig, device: torch.device, hidden_size: int | None) -> int:
    """Tokens of the largest batch: enough to keep the device busy, as more only add latency.

    A narrow model needs more of them: its matrix products are small, and finish soon.
    """
    if config.max_num_batched_tokens:
        return config.max_num_batched_tokens
    if device.type != "cpu":
        return BATCH_TOKENS
    narrow = hidden_size is not None and hidden_size <= NARROW
    return CPU_BATCH_TOKENS * 2 if narrow else CPU_BATCH_TOKENS


def kv_shape_of(model: Model, config: EngineConfig) -> KvShape:
    """A model's KV, in the type that it is stored in."""
    return replace(model.kv_shape, stored=STORED_TYPES[config.kv_cache_dtype])


def most_verified(config: EngineConfig, limits: Limits) -> int:
    """Most rows of a batch that are drafts, or tokens that drafts are behind; 0: no drafts."""
    if config.speculative_config is None:
        return 0
    settings, most = read_speculative_config(config.speculative_config), limits.max_sequences
    drafting = min(most, settings.disable_by_batch_size or most)
    return min(limits.max_tokens, drafting * (1 + settings.most_tokens))


def max_len_of(config: EngineConfig, shape: ModelShape) -> int:
    """Tokens of the longest sequence; raises UnusableCheckpoint."""
    wanted = config.max_model_len or shape.max_positions
    if wanted > shape.max_positions:
        raise UnusableCheckpoint(
            f"--max-model-len {wanted} is more than the model's {shape.max_positions} positions"
        )
    return wanted


def num_blocks(
    config: EngineConfig,
    max_len: int,
    block_bytes: int,
    state_blocks: int,
    device: torch.device,
) -> int:
    """KV blocks: enough for every seat at full length, or as many as fit into the memory, which
    must have room for one such sequence.
    """
    per_sequence = blocks_of_longest(config, max_len, state_blocks)
    budget = config.kv_cache_memory_bytes
    if budget is None:
        budget = int(_free_memory_bytes(device) * KV_SHARE_OF_FREE_MEMORY)
        if device.type == "cpu":
            budget //= config.tensor_parallel_size
    blocks = min(per_sequence * config.max_num_seqs, budget // block_bytes)
    return check_fits(blocks, config, max_len, state_blocks, budget)


def blocks_of_longest(config: EngineConfig, max_len: int, state_blocks: int) -> int:
    """Blocks of a sequence of full length, and of its state."""
    return -(-max_len // config.block_size) + state_blocks


def check_fits(
    blocks: int, config: EngineConfig, max_len: int, state_blocks: int, budget: int
) -> int:
    """`blocks`, if one sequence of full length fits in them; raises UnusableCheckpoint."""
    if blocks < (needed := blocks_of_longest(config, max_len, state_blocks)):
        raise UnusableCheckpoint(
            f"{budget} bytes of KV hold {blocks} blocks of --block-size {config.block_size} "
            f"tokens, one sequence of --max-model-len {max_len} needs {needed}"
        )
    return blocks


def _free_memory_bytes(device: torch.device) -> int:
    """The device's free memory if it has its own and we can query it, else the host's."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return free
    return free_memory_bytes()
