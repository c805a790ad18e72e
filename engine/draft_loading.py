"""Opens what drafts for a model: a draft model beside it, a draft head, or a lookup.

A draft model is not split among ranks: the leading one has all of it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.attention.kv_memory import KvMemory
from engine.checkpoints.checkpoint import Checkpoint, open_checkpoint, read_json
from engine.checkpoints.linear import FEW
from engine.checkpoints.placement import Placement
from engine.errors import UnusableCheckpoint
from engine.models.choosing import load_model, read_config
from engine.models.family import generates
from engine.models.model import Model
from engine.placing import dtype_of, placement
from engine.pooling.encoders import is_encoder
from engine.running.head_runner import HeadRunner
from engine.running.opening import OpenDevice, RunnerOpener
from engine.sampling.sampler import Sampler
from engine.scheduling.prompt_lookup import NgramDrafter
from engine.scheduling.sequence_manager import Limits
from engine.settings import (
    SPECULATIVE_FLAG,
    EngineConfig,
    SpeculativeConfig,
    read_speculative_config,
)
from engine.sizing import kv_shape_of
from engine.state_settings import keeps_state
from engine.stepping.draft_model import ModelDrafter
from engine.stepping.head_drafter import HeadDrafter
from engine.torch_engine import TorchEngine

TOKENIZER = "tokenizer.json"
MIB = 1 << 20
log = logging.getLogger(__name__)


class DraftKvMemory(KvMemory):
    """KV of a draft model, in blocks that several sequences may share before they are whole."""

    def clear(self, blocks: Sequence[int]) -> None:
        """Leave a block that is begun as it is: others may count on what is in it.

        Numbers that are left over are finite, and masked.
        """


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft model. Its KV memory has as many blocks as the model's, of that size.

    `limits` are those of its batches; sequences may be longer than the `longest` that it drafts
    for.
    """

    settings: SpeculativeConfig
    config: EngineConfig
    model: Model
    place: Placement
    limits: Limits
    longest: int

    @property
    def most_drafting(self) -> int | None:
        """See Scheduler."""
        return most_drafting(self.settings, self.place.device)

    @property
    def block_bytes(self) -> int:
        """Of one block of its KV."""
        kv = kv_shape_of(self.model, self.config)
        return self.config.block_size * kv.token_bytes(self.place.dtype)

    def memory_of(self, num_blocks: int) -> KvMemory:
        """A KV memory of so many blocks."""
        place, size = self.place, self.config.block_size
        shape, kernels = kv_shape_of(self.model, self.config), place.kernels
        return DraftKvMemory(shape, num_blocks, size, place.dtype, place.device, kernels)

    def drafter(
        self, opened: OpenDevice | None, num_blocks: int, sampler: Sampler
    ) -> ModelDrafter:
        """Allocate its KV and open its runner; `sampler` is that of the model."""
        memory = self.memory_of(num_blocks)
        log.info(
            "%s drafts up to %d tokens at a time; its KV takes %.1f MiB",
            self.config.model,
            self.settings.most_tokens,
            self.block_bytes * num_blocks / MIB,
        )
        opener = RunnerOpener(opened, self.limits, None, self.config.enforce_eager)
        return ModelDrafter(
            opener.open(self.model, memory),
            sampler,
            self.model.config.vocab_size,
            self.config.block_size,
            self.longest,
            self.limits.max_tokens,
            self.settings.most_tokens,
        )


def most_drafting(settings: SpeculativeConfig, device: torch.device) -> int | None:
    """See Scheduler, for drafts that a model or a head makes. By default, on a CPU, as many as
    have FEW rows with their drafts: more take longer each.
    """
    most = settings.disable_by_batch_size
    if most is not None or device.type != "cpu":
        return most
    return max(1, FEW // (1 + settings.most_tokens))


def add_drafter(
    engine: TorchEngine,
    config: EngineConfig,
    opened: OpenDevice | None,
    draft: DraftModel | None,
    head: HeadRunner | None,
) -> None:
    """Set what drafts, if anything does: a loaded draft model, a draft head, or a lookup."""
    scheduler = engine.scheduler
    if draft is not None:
        scheduler.drafter = draft.drafter(opened, engine.memory.num_blocks, engine.sampler)
        scheduler.most_drafting = draft.most_drafting
        return
    if config.speculative_config is None:
        return
    settings = read_speculative_config(config.speculative_config)
    if head is not None:
        most = most_drafting(settings, engine.memory.block_rows.device)
        save, longest = engine.save_evicted_blocks, settings.most_tokens
        log.info("the draft head drafts up to %d tokens at a time", longest)
        engine.draft_with_head(HeadDrafter(head, engine.sampler, save, longest, most), most)
        return
    scheduler.drafter = NgramDrafter(settings)
    scheduler.most_drafting = settings.disable_by_batch_size


def load_draft_model(
    config: EngineConfig,
    checkpoint: Checkpoint,
    limits: Limits,
    device: torch.device,
    opened: OpenDevice | None,
) -> DraftModel | None:
    """The draft model that the settings name, with its weights; None if they name none.

    `checkpoint` and `limits` are those of the model that it drafts for. It is not quantized
    here, and has no adapters. Raises UnusableCheckpoint, which names the setting.
    """
    if config.speculative_config is None:
        return None
    settings = read_speculative_config(config.speculative_config)
    if settings.model is None or not settings.has_draft_model:
        return None
    ours = replace(
        config,
        model=settings.model,
        model_impl="auto",
        quantization=None,
        lora_modules=(),
        tensor_parallel_size=1,
    )
    try:
        return _load(settings, ours, checkpoint, limits, device, opened)
    except UnusableCheckpoint as error:
        raise UnusableCheckpoint(f"{SPECULATIVE_FLAG}: {error}") from error


def _load(
    settings: SpeculativeConfig,
    config: EngineConfig,
    target: Checkpoint,
    limits: Limits,
    device: torch.device,
    opened: OpenDevice | None,
) -> DraftModel:
    checkpoint = open_checkpoint(config.model, config.dummy_seed)
    if is_encoder(checkpoint.config) or not generates(checkpoint.config):
        raise UnusableCheckpoint(f"{config.model} does not generate text")
    shape = read_config(checkpoint, config.model_impl)
    if keeps_state(shape):
        raise UnusableCheckpoint(f"{config.model} keeps a state, which no draft may change")
    if not _same_vocabulary(target.folder, checkpoint.folder):
        log.warning(
            "%s %s: its tokens are not those of the model, so hardly a draft will be right",
            SPECULATIVE_FLAG,
            config.model,
        )
    longest = min(limits.max_model_len or shape.max_positions, shape.max_positions)
    place = placement(config, shape, dtype_of(config, checkpoint), device, opened)
    model = load_model(checkpoint, shape, longest, place)
    batches = replace(limits, max_tokens=min(limits.max_tokens, longest))
    return DraftModel(settings, config, model, place, batches, longest)


def _same_vocabulary(one: Path, other: Path) -> bool:
    """Whether two folders' tokenizers have the same tokens; True if a folder has none."""
    files = one / TOKENIZER, other / TOKENIZER
    if not all(file.exists() for file in files):
        return True
    first, second = (read_json(file).get("model") or {} for file in files)
    return bool(first.get("vocab") == second.get("vocab"))
