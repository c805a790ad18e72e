"""All other decoders: transformers' modelling code over our paged attention.

transformers lets a model attend through a function that others register. Ours writes the keys
and values of a batch into KV blocks and reads them back from there, so the tokens of many
sequences can be concatenated into what the model takes for one. A model with state other than
keys and values (a recurrence, a convolution, another score) cannot be run like that;
engine/models/transformers_loading.py detects this at startup.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape
from engine.checkpoints.checkpoint import Checkpoint
from engine.checkpoints.dummy import DummyTensorFile
from engine.errors import UnusableCheckpoint
from engine.kernels.style import AttentionStyle
from engine.models.rope_config import TRAINED

ATTENTION = "pdserve_paged"
BROKEN = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What transformers raises for models that do not work."""
NOT_KNOWN = KvShape(0, 0, 0)  # until its layers have attended once
CONSTANT = (".masked_bias",)  # in old checkpoints; no code reads it any more
MOVING_ROPES = {"dynamic", "longrope"}  # beyond the trained length, cached keys would change


@dataclass(frozen=True, slots=True)
class TransformersConfig:
    """The sizes that the engine needs (engine/models/model.py), and the number of layers."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: int


@dataclass(slots=True, eq=False)
class TransformersModel:
    """A causal language model of transformers, with our attention in its layers.

    `whole` is the model with its head for logits, `base` is the part below the head.
    """

    config: TransformersConfig
    kv_shape: KvShape
    whole: Any
    base: Any

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """[tokens] ids to [tokens, hidden], KV written on the way."""
        with patched_attention(_PagedAttention(batch)):
            outputs = self.base(
                input_ids=tokens.unsqueeze(0),
                position_ids=batch.positions.unsqueeze(0),
                use_cache=False,
            )
        hidden: Tensor = outputs.last_hidden_state[0]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] to [rows, vocabulary], float32, caps and scales included.

        The model's own code computes them, with its layers skipped, as `forward` has run them.
        """
        with _given(self.base, hidden):
            rows = torch.zeros((1, len(hidden)), dtype=torch.long, device=hidden.device)
            outputs = self.whole(input_ids=rows, use_cache=False)
        logits: Tensor = outputs.logits[0]
        return logits.float()


def loading_errors() -> tuple[type[Exception], ...]:
    """Exceptions that transformers raises for bad checkpoints; slow to import, like itself."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    return (*BROKEN, AssertionError, StrictDataclassError, SafetensorError)


def read_transformers_config(checkpoint: Checkpoint) -> TransformersConfig:
    """The config of a model outside our families; raises UnusableCheckpoint."""
    from transformers import AutoConfig  # slow to load, and most models do not need it

    raw = checkpoint.config
    _must_be_known(raw)
    try:
        with _quiet():
            config: Any = AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True)
        text = config.get_text_config()
        layers, most = text.num_hidden_layers, _max_positions(text)
        return TransformersConfig(text.vocab_size, text.hidden_size, layers, most)
    except loading_errors() as error:
        raise UnusableCheckpoint(f"config.json: {error}") from error


def load_whole(
    checkpoint: Checkpoint, config: TransformersConfig, dtype: torch.dtype
) -> TransformersModel:
    """Read all weights; the model still uses its own attention. Raises UnusableCheckpoint."""
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION, _attend)
    if checkpoint.dummy_seed is not None:
        whole = _made_up(checkpoint.folder, dtype, checkpoint.dummy_seed)
        return TransformersModel(config, NOT_KNOWN, whole.eval(), whole.get_decoder())
    try:
        with _quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                checkpoint.folder,
                dtype=dtype,
                attn_implementation="eager",
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported, and refused below
            )
    except loading_errors() as error:
        raise UnusableCheckpoint(f"{checkpoint.folder}: {error}") from error
    whole, told = loaded
    for what in ("missing", "unexpected", "mismatched"):
        names = sorted(map(str, told[f"{what}_keys"]))
        if names := [name for name in names if not name.endswith(CONSTANT)]:
            raise UnusableCheckpoint(f"{len(names)} tensors {what}, such as {names[0]}")
    return TransformersModel(config, NOT_KNOWN, whole.eval(), whole.get_decoder())


def _made_up(folder: Path, dtype: torch.dtype, seed: int) -> Any:  # noqa: ANN401  theirs
    """transformers' model with our random weights, tensor by tensor."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with _quiet():
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            auto: Any = AutoModelForCausalLM
            whole = auto.from_config(config, dtype=dtype, attn_implementation="eager")
    except loading_errors() as error:
        raise UnusableCheckpoint(f"{folder}: {error}") from error
    for name, one in whole.named_parameters():
        made = DummyTensorFile(tuple(one.shape), one.dtype, one.device, seed)
        one.data.copy_(made.get_tensor(name))
    return whole


def _must_be_known(raw: Mapping[str, Any]) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, architectures = raw.get("model_type"), raw.get("architectures")
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) if isinstance(kind, str) else None
    names = None if architectures is None else [str(one).lower() for one in architectures]
    if known is None or names not in (None, [str(known).lower()]):  # some write PhiMoE
        raise UnusableCheckpoint(
            f"config.json: transformers has no decoder {architectures} (model_type {kind}); "
            "docs/reference/models.md says what works"
        )
    if raw.get("quantization_config"):
        raise UnusableCheckpoint("config.json: quantized checkpoints are not supported")


def _max_positions(config: Any) -> int:  # noqa: ANN401  theirs are all different
    """The longest sequence; the trained length if a longer one would change cached keys."""
    most: int = config.max_position_embeddings
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *(part for part in rope.values() if isinstance(part, Mapping))):
        if one.get("rope_type") in MOVING_ROPES:
            said = getattr(config, TRAINED, None) or one.get(TRAINED)
            most = min(most, int(said or most))
    return most


Attend = Callable[..., Tensor]
_current: ContextVar[Attend] = ContextVar("_current")


@contextmanager
def patched_attention(attend: Attend) -> Iterator[None]:
    """Within this context every layer attends by calling `attend`, with `_attend`'s arguments.

    This is the only way to pass the batch to layers: not all models pass arguments on."""
    token = _current.set(attend)
    try:
        yield
    finally:
        _current.reset(token)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **more: object,
) -> tuple[Tensor, None]:
    """The function that transformers calls in each layer.

    [1, heads, tokens, dim] to [1, tokens, heads, dim].
    `more` has what only some models pass: `scaling`, `sliding_window`, `softcap`, `s_aux`
    (sinks). The given mask is ignored.
    """
    del attention_mask
    return _current.get()(module, query, key, value, **more), None


@dataclass(frozen=True, slots=True)
class _PagedAttention:
    """Attention of one batch over the KV in its blocks."""

    batch: Batch

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None = None,
        **more: Any,  # noqa: ANN401
    ) -> Tensor:
        _, heads, tokens, dim = query.shape
        dtype, layer = self.batch.memory.dtype, layer_of(module)
        keys, values = (one[0].transpose(0, 1).to(dtype) for one in (key, value))
        self.batch.write(layer, keys, values)
        scale = dim**-0.5 if scaling is None else float(scaling)
        window, softcap = more.get("sliding_window"), more.get("softcap")
        style = AttentionStyle(scale, window, softcap, more.get("s_aux"))
        attended = self.batch.attend(layer, style, query[0].transpose(0, 1).to(dtype))
        return attended.view(1, tokens, heads, dim).to(query.dtype)


def layer_of(module: nn.Module) -> int:
    """The index of an attention module's layer."""
    index = module.layer_idx
    assert isinstance(index, int)
    return index


@contextmanager
def _given(base: nn.Module, hidden: Tensor) -> Iterator[None]:
    """Within this context the model's `base` returns `hidden` instead of running its layers."""
    from transformers.modeling_outputs import MoeModelOutputWithPast

    outputs = MoeModelOutputWithPast(last_hidden_state=hidden.unsqueeze(0))
    outputs.cross_attentions = None  # some heads pass it on

    def answer(*_args: object, **_more: object) -> MoeModelOutputWithPast:
        return outputs

    base.forward = answer
    try:
        yield
    finally:
        del base.forward


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers: we refuse what it would warn of, and its bar needs a terminal."""
    from transformers.utils import logging as theirs

    before, shown = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.ERROR)
    if not sys.stderr.isatty():
        theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        theirs.set_verbosity(before)
        if shown:
            theirs.enable_progress_bar()  # type: ignore[no-untyped-call]
