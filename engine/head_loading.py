"""Opens a model's draft head: its config, its weights, and what runs it.

It is the model's own layer for multi-token prediction, or an EAGLE-3 head, which has a
checkpoint of its own. Its KV is in the model's blocks, and ranks share it as they do the model.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from msgspec.structs import replace as with_fields
from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.checkpoints.checkpoint import Checkpoint, open_checkpoint
from engine.draft_loading import DraftKvMemory
from engine.errors import UnusableCheckpoint
from engine.kernels.cpu.native import CpuKernels
from engine.models.choosing import AnyConfig
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.eagle_config import EagleConfig, parse_eagle_config
from engine.models.eagle_head import EagleHead
from engine.models.eagle_weights import load_eagle_head
from engine.models.model import Model
from engine.models.shards import check_divisible
from engine.placing import placement
from engine.running.head_runner import OwnHeadRunner
from engine.running.opening import OpenDevice, RunnerOpener
from engine.running.runner import Runner
from engine.scheduling.sequence_manager import Limits
from engine.settings import SPECULATIVE_FLAG, EngineConfig, read_speculative_config
from engine.sharding.group import RankGroup


class HeadKvMemory(DraftKvMemory):
    """The model's KV memory, as its draft head uses it: what it enters is cleared already."""

    def __init__(self, memory: KvMemory) -> None:
        self._rows, device = memory.block_rows, memory.block_rows.device
        sizes = memory.num_blocks, memory.block_size
        super().__init__(memory.shape, *sizes, memory.dtype, device, memory.kernels)

    def _zeros(self, size: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._rows


class EagleSource(NamedTuple):
    """An EAGLE-3 head that has not been loaded yet."""

    checkpoint: Checkpoint
    config: EagleConfig


class HeadSource(NamedTuple):
    """A head that has not been loaded yet; `eagle` None: the model's own layer."""

    shape: ModelConfig
    """The config of the model with this head."""
    eagle: EagleSource | None

    @property
    def variant(self) -> Mapping[str, str]:
        """What the model's fingerprint has of it: blocks have KV of this very head."""
        if self.eagle is None:
            return {"draft_head": "mtp"}
        return {"draft_head": f"eagle3 {self.eagle.checkpoint.fingerprint()}"}


def read_head(config: EngineConfig, shape: AnyConfig) -> HeadSource | None:
    """The head that the settings name, for a model of this `shape`; None if they name none.

    Raises UnusableCheckpoint, which names the setting.
    """
    if config.speculative_config is None:
        return None
    settings = read_speculative_config(config.speculative_config)
    if not settings.has_head:
        return None
    told = f"{SPECULATIVE_FLAG}: method {settings.method}"
    if not isinstance(shape, ModelConfig):
        raise UnusableCheckpoint(
            f"{told} is for models that our own code runs, not transformers'"
        )
    if settings.model is None:
        if not shape.prediction_layers:
            raise UnusableCheckpoint(f"{told}: this model has no layer for it")
        return HeadSource(with_fields(shape, draft_head=True), None)
    try:
        checkpoint = open_checkpoint(settings.model)
        eagle = parse_eagle_config(checkpoint.config, shape)
        check_divisible(eagle.layer, config.tensor_parallel_size)
    except UnusableCheckpoint as error:
        raise UnusableCheckpoint(f"{told}: {settings.model}: {error}") from error
    headed = with_fields(shape, draft_head=True, draft_inputs=eagle.inputs)
    return HeadSource(headed, EagleSource(checkpoint, eagle))


def with_head(
    decoder: Decoder,
    head: HeadSource,
    config: EngineConfig,
    opened: OpenDevice | None,
    group: RankGroup | None,
    limits: Limits,
) -> Decoder:
    """A loaded model with its head; both have room for the states of the largest batch.

    A head in a checkpoint of its own is loaded here, in the model's dtype, and not quantized.
    """
    if head.eagle is not None:
        longest = limits.max_model_len or head.shape.max_positions
        made = _load(head.eagle, decoder, config, opened, group, longest)
        decoder = replace(decoder, draft_head=made)
    rows = max(limits.max_tokens, limits.max_sequences)
    assert decoder.draft_head is not None, "the model's own was loaded with it"
    decoder.draft_head.make_room(rows)
    if decoder.layer_inputs is not None:
        decoder.layer_inputs.make_room(rows, decoder.embedding)
    return decoder


def _load(
    eagle: EagleSource,
    decoder: Decoder,
    config: EngineConfig,
    opened: OpenDevice | None,
    group: RankGroup | None,
    longest: int,
) -> EagleHead:
    like, shape = decoder.embedding, eagle.config.layer
    plain = replace(config, quantization=None)
    place = placement(plain, shape, like.dtype, like.device, opened)
    try:
        head = load_eagle_head(*eagle, decoder, longest, replace(place, group=group))
    except UnusableCheckpoint as error:
        folder = eagle.checkpoint.folder
        raise UnusableCheckpoint(f"{SPECULATIVE_FLAG}: {folder}: {error}") from error
    if isinstance(place.kernels, CpuKernels):
        place.kernels.move_to_large_pages()
    return head


def open_head_runner(
    opener: RunnerOpener, model: Model, memory: KvMemory, behind: Runner
) -> OwnHeadRunner | None:
    """What runs a model's draft head, if it has one loaded, `behind` the model's runner."""
    head = model.draft_head if isinstance(model, Decoder) else None
    if head is None or not isinstance(model, Decoder):
        return None
    runner = opener.open(head, HeadKvMemory(memory), behind)
    made = OwnHeadRunner(head, runner, model.layer_inputs)
    if opener.opened is not None:
        made.warm()
    return made
