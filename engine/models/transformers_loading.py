"""Loads a transformers model, after a check that our paged attention gives its own results.

Two short prompts are run by the model's own eager attention, each in one piece, and then
through KV blocks: both in one batch, in chunks, with a single token between. A model whose
results differ has state outside the blocks, or attends in a way that we do not support; it is
refused.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.checkpoints.checkpoint import Checkpoint
from engine.errors import UnusableCheckpoint
from engine.kernels.contract import Kernels
from engine.models.families import LIST
from engine.models.transformers_model import (
    ATTENTION,
    BROKEN,
    TransformersConfig,
    TransformersModel,
    layer_of,
    load_whole,
    patched_attention,
)

BLOCK = 16
SHORT, LONG = 47, 61
LONGEST_WINDOW = 1024  # windows up to this are exercised by the check
KINDS = {"full_attention", "sliding_attention"}
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def load_transformers_model(
    checkpoint: Checkpoint,
    config: TransformersConfig,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels | None = None,
) -> TransformersModel:
    """A model that attends through KV blocks; raises UnusableCheckpoint with the reason."""
    model = load_whole(checkpoint, config, dtype)
    name = type(model.whole).__name__
    try:
        model.whole.to(device)
        _check(model, dtype, device, kernels)
    except BROKEN as error:
        why = f"{name} does not run over blocks: {error}"
        raise UnusableCheckpoint(f"{why}; these do: {LIST}") from error
    except _UnsupportedModel as error:
        raise UnusableCheckpoint(f"{name}: {error}; these run: {LIST}") from error
    return model


class _UnsupportedModel(Exception):
    """Why a model cannot be run."""


@torch.inference_mode()
def _check(
    model: TransformersModel, dtype: torch.dtype, device: torch.device, kernels: Kernels | None
) -> None:
    text = model.whole.config.get_text_config()
    if others := set(getattr(text, "layer_types", None) or ()) - KINDS:
        raise _UnsupportedModel(f"layers of {', '.join(sorted(others))} do not run here")
    if getattr(text, "attention_chunk_size", None):
        raise _UnsupportedModel("attention in chunks does not run here")
    prompts = _prompts(model.config, getattr(text, "sliding_window", None), device)
    theirs = [_alone(model, prompt) for prompt in prompts]
    theirs.append(model.whole(input_ids=prompts[0][None], use_cache=False).logits[0])
    model.whole.set_attn_implementation(ATTENTION)
    _look_at_layers(model, device)
    needed = sum(_num_blocks(prompt) for prompt in prompts)
    memory = KvMemory(model.kv_shape, needed, BLOCK, dtype, device, kernels)
    ours = _paged(model, prompts, memory)
    ours.append(model.logits(ours[0]))
    for one, other in zip(ours, theirs, strict=True):
        away = float((one.float() - other.float()).norm() / other.float().norm())
        if not away < TOLERANCE[dtype]:  # also if it is NaN
            raise _UnsupportedModel(
                f"over blocks it differs from itself by {away:.2g}: it has state beside keys "
                "and values, or attends in a way of its own"
            )


def _look_at_layers(model: TransformersModel, device: torch.device) -> None:
    """Find out the shape of keys and values, by running one token."""
    seen = dict[int, tuple[int, int]]()

    def look(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **_: object
    ) -> Tensor:
        if key.shape != value.shape or key.shape[-1] != query.shape[-1]:
            raise _UnsupportedModel("keys and values of unlike shapes do not run here")
        seen[layer_of(module)] = key.shape[1], key.shape[-1]
        return query.transpose(1, 2)

    token = torch.zeros((1, 1), dtype=torch.long, device=device)
    with patched_attention(look):
        model.base(input_ids=token, use_cache=False)
    if sorted(seen) != list(range(model.config.num_layers)) or len(set(seen.values())) > 1:
        raise _UnsupportedModel("its layers do not all have keys and values of one shape")
    heads, dim = seen[0]
    model.kv_shape = KvShape(len(seen), heads, dim)


def _prompts(
    config: TransformersConfig, window: int | None, device: torch.device
) -> list[Tensor]:
    """Two prompts, the second longer than the layers' window."""
    longer = LONG
    if window is not None and window <= LONGEST_WINDOW:
        longer = max(LONG, window + SHORT)
    generator = torch.Generator().manual_seed(0)
    lengths = (min(SHORT, config.max_positions), min(longer, config.max_positions))
    return [
        torch.randint(0, config.vocab_size, (length,), generator=generator).to(device)
        for length in lengths
    ]


def _alone(model: TransformersModel, prompt: Tensor) -> Tensor:
    """[tokens, hidden], by the model's own attention."""
    hidden: Tensor = model.base(input_ids=prompt[None], use_cache=False).last_hidden_state[0]
    return hidden


def _paged(
    model: TransformersModel, prompts: Sequence[Tensor], memory: KvMemory
) -> list[Tensor]:
    """The same through blocks, in three batches; the second has a single token and a chunk."""
    needs = [_num_blocks(prompt) for prompt in prompts]
    blocks = (range(needs[0]), range(sum(needs) - 1, needs[0] - 1, -1))
    cuts = [_cuts(len(prompts[0]), 0), _cuts(len(prompts[1]), len(prompts[1]) // 3)]
    parts = list[list[Tensor]]([[], []])
    for turn in range(3):
        spans = [
            Span(at[turn], at[turn + 1] - at[turn], ours)
            for at, ours in zip(cuts, blocks, strict=True)
        ]
        singles, chunks = (spans[:1], spans[1:]) if spans[0].length == 1 else ([], spans)
        tokens = [
            prompt[span.start : span.start + span.length]
            for prompt, span in zip(prompts, spans, strict=True)
        ]
        hidden = model.forward(torch.cat(tokens), AttentionBatch(memory, singles, chunks))
        for part, one in zip(parts, hidden.split([span.length for span in spans]), strict=True):
            part.append(one)
    return [torch.cat(part) for part in parts]


def _num_blocks(prompt: Tensor) -> int:
    return -(-len(prompt) // BLOCK)


def _cuts(length: int, more: int) -> list[int]:
    """The ends of three chunks; the middle one is a single token, or `more` than that."""
    return [0, length // 3, length // 3 + 1 + more, length]
