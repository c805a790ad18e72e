"""An engine's settings for a model that keeps a state beside KV (see KvMemory).

A state is what remains of all tokens so far. So a prefix can be shared only where its state was
copied (engine/scheduling/snapshots.py), which lower tiers and cache events know nothing of. And
no token can be computed twice: there are no drafts, which are computed before it is known
whether they count.
"""

import logging
from dataclasses import replace

import torch

from engine.attention.kv_memory import KvShape, StateShape
from engine.errors import UnusableCheckpoint, UnusableTier
from engine.models.choosing import AnyConfig
from engine.models.config import ModelConfig
from engine.models.decoder import kv_shape_of
from engine.models.shards import shard_config
from engine.settings import SPECULATIVE_FLAG, EngineConfig
from engine.sharding.shard import Shard
from engine.sizing import STORED_TYPES, batch_tokens
from engine.state_info import StateInfo

log = logging.getLogger(__name__)


def settings_for(config: EngineConfig, shape: AnyConfig, dtype: torch.dtype) -> EngineConfig:
    """The settings, changed as a model of this `shape` needs; most models need nothing.

    Blocks are made large enough to hold the state of a layer. Raises UnusableCheckpoint or
    UnusableTier for what such a model cannot have.
    """
    if not keeps_state(shape):
        return config
    assert isinstance(shape, ModelConfig)
    _refuse(config)
    _check_batch(config, shape)
    part = shard_config(shape, Shard(0, config.tensor_parallel_size))
    kv = replace(kv_shape_of(part), stored=STORED_TYPES[config.kv_cache_dtype])
    size = _block_size(config.block_size, kv, dtype)
    if size != config.block_size:
        log.info(
            "--block-size is %d and not %d: a block has to hold the state of a layer",
            size,
            config.block_size,
        )
    return replace(config, block_size=size)


def keeps_state(shape: AnyConfig) -> bool:
    """Whether a model keeps a state beside KV."""
    return isinstance(shape, ModelConfig) and shape.recurrent_layers > 0


def info_of(part: StateShape | None, ranks: int) -> StateInfo | None:
    """What is reported of the whole model's state, from one rank's `part`."""
    if part is None:
        return None
    net = part.net
    return StateInfo(
        part.layers,
        net.key_heads * ranks,
        net.value_heads * ranks,
        net.key_width,
        net.value_width,
        net.taps,
        part.layer_bytes,
    )


def _block_size(size: int, kv: KvShape, dtype: torch.dtype) -> int:
    """Tokens per block: so many times `size` that a block holds the state of one layer."""
    assert kv.state is not None
    return size * -(-kv.state.layer_bytes // (size * kv.token_bytes(dtype)))


def _refuse(config: EngineConfig) -> None:
    why = "this model keeps a state beside KV"
    if config.speculative_config is not None:
        raise UnusableCheckpoint(f"{SPECULATIVE_FLAG}: {why}, which no draft may change")
    for flag, asked in (
        ("--kv-offloading-size", config.kv_offloading_size),
        ("--kv-disk-path", config.kv_disk_path),
        ("--kv-events-config", config.kv_cache_events or None),
    ):
        if asked is not None:
            raise UnusableTier(f"{flag}: {why}, of which that knows nothing")


def _check_batch(config: EngineConfig, shape: ModelConfig) -> None:
    """On a device a step is launched before its batch is chosen. It counts in any case only if
    every batch has room for all sequences that decode.
    """
    device, seats = torch.device(config.device), config.max_num_seqs
    most = batch_tokens(config, device, shape.hidden_size)
    if device.type != "cpu" and most < seats:
        raise UnusableCheckpoint(
            f"--max-num-batched-tokens {most}: this model keeps a state beside KV, so each of "
            f"--max-num-seqs {seats} has to have a token of a batch"
        )
