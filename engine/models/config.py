"""A model's config.json, translated into our own fields. Torch-free.

Families differ here only in data: their table is engine/models/families.py.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from engine.checkpoints.packing import Packing, read_packing
from engine.errors import UnsupportedArchitecture, UnusableCheckpoint
from engine.models.config_numbers import refused_number, wrong_number
from engine.models.expert_config import (
    ConvolutionConfig,
    DeltaConfig,
    ExpertConfig,
    LatentConfig,
    MambaConfig,
    Multipliers,
    RecurrentConfig,
)
from engine.models.families import FAMILIES, LIST
from engine.models.family import FULL, Family, generates
from engine.models.layer_plan import LayerPlan, with_layers
from engine.models.rope_config import Halves, QueryScaling, Rope, Size
from engine.models.tensor_names import AttentionNames, MlpNames, NormNames

Activation = Literal["silu", "gelu", "gelu_pytorch_tanh"]


class KvHeads(msgspec.Struct, frozen=True, kw_only=True):
    """How many heads of keys and values some layers have, and the numbers of each head."""

    num_kv_heads: Size
    head_dim: Halves


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder.

    `squared_relu`: MLPs and experts have no gates, and that in place of `activation`.
    `mixer_names`: the checkpoint's names are those of engine/models/mixer_names.py.
    `fused_qkv`: the checkpoint has one tensor where others have three. `norm_adds_one`: norms
    multiply by 1 + their weight. `qk_norm`: norms over each head of queries and keys, or over
    all heads together. `embedding_scale_rounds`: the scale is rounded to the weights' dtype
    before it is used. `sinks`: each head has one (AttentionStyle).
    `query_scaling`: of all layers.
    `prediction_layers`: layers in the checkpoint behind the last, for multi-token prediction;
    `unused_names`: what names of such tensors begin with in families whose heads are not
    loaded. `draft_head`: the model has one, the first of these layers, or another checkpoint's
    that reads what goes into the layers `draft_inputs`. With `latent`,
    attention is over latents, whose rotated part is `head_dim` wide. `gated_attention`: what
    heads read is multiplied by gates, whose weights are in `q_proj`, behind each head's query.
    Heads of some layers differ from the others' (`global_heads`). `value_norm`: values are
    normed as well, without weights. Each layer may have an input of its own, of
    `layer_input_width` (engine/models/layer_inputs.py). `layer_scalars`: what leaves a layer is
    multiplied by one.
    `delta`, `mamba` or `convolution` has the sizes of recurrent layers. `multipliers` are of
    products. `packing` says how the checkpoint stores quantized weights, if it does.
    """

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_heads: Size
    num_kv_heads: Size
    head_dim: Halves  # rotary embedding pairs one half with the other
    norm_eps: float
    max_positions: Size
    layers: tuple[LayerPlan, ...]
    attention_scale: float
    attention_softcap: float | None = None
    activation: Activation = "silu"
    squared_relu: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    mixer_names: bool = False
    fused_qkv: bool = False
    norms: NormNames = NormNames()
    attention_names: AttentionNames = AttentionNames()
    mlp_names: MlpNames = MlpNames()
    norm_adds_one: bool = False
    qk_norm: Literal["head", "all"] | None = None
    embedding_scale: float | None = None
    embedding_scale_rounds: bool = False
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    tied_embeddings: bool = False
    sinks: bool = False
    query_scaling: QueryScaling | None = None
    experts: ExpertConfig | None = None
    latent: LatentConfig | None = None
    gated_attention: bool = False
    global_heads: KvHeads | None = None
    value_norm: bool = False
    layer_input_width: Size | None = None
    layer_scalars: bool = False
    delta: DeltaConfig | None = None
    mamba: MambaConfig | None = None
    multipliers: Multipliers | None = None
    convolution: ConvolutionConfig | None = None
    prediction_layers: int = 0
    draft_head: bool = False
    draft_inputs: tuple[int, ...] = ()
    unused_names: tuple[str, ...] = ()
    packing: Packing | None = None

    def __post_init__(self) -> None:
        """Check fields against each other."""
        if self.num_heads % self.num_kv_heads:
            heads = f"{self.num_heads} heads over {self.num_kv_heads} KV heads"
            raise ValueError(f"{heads} cannot be shared out")
        for rope in self.ropes:
            if rope.rotary_dim > (whole := self.rope_width(rope)):
                raise ValueError(f"{rope.rotary_dim} of {whole} dimensions to rotate")
        if (other := self.global_heads) is not None:
            if self.num_heads % other.num_kv_heads:
                heads = f"{self.num_heads} heads over {other.num_kv_heads} KV heads"
                raise ValueError(f"{heads} of global layers cannot be shared out")
            if other.head_dim not in (self.head_dim, 2 * self.head_dim):
                said = f"global_head_dim {other.head_dim} and head_dim {self.head_dim}"
                raise ValueError(f"{said} are not equal, and it is not twice as wide")
        if not self.kv_layers:
            raise ValueError("no layer attends to anything")

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def kv_layers(self) -> int:
        """The layers that have KV: the draft head's is behind the others."""
        return sum(layer.has_kv for layer in self.layers) + self.draft_head

    @property
    def global_kv_layers(self) -> int:
        """Those of them that have `global_heads`."""
        return sum(layer.has_kv and layer.global_heads for layer in self.layers)

    def kv_source_of(self, index: int) -> int:
        """The layer whose KV layer `index` reads: itself, or the last before that is alike.

        Raises ValueError if there is none.
        """
        if not (plan := self.layers[index]).shares_kv:
            return index
        kind = plan.window, plan.rope, plan.global_heads
        for at in range(index - 1, -1, -1):
            one = self.layers[at]
            if one.has_kv and (one.window, one.rope, one.global_heads) == kind:
                return at
        raise ValueError(f"no layer before layer {index} has KV for it to read")

    def kv_layer_of(self, index: int) -> int:
        """Where the KV that layer `index` reads is, as KvShape counts: global layers last."""
        source = self.kv_source_of(index)
        is_global = self.layers[source].global_heads
        before = self.layers[:source]
        own = sum(layer.has_kv and layer.global_heads == is_global for layer in before)
        return own + (self.kv_layers - self.global_kv_layers if is_global else 0)

    def kv_heads_of(self, plan: LayerPlan) -> KvHeads:
        """A layer's heads of keys and values."""
        if plan.global_heads and self.global_heads is not None:
            return self.global_heads
        return KvHeads(num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    def rope_width(self, rope: Rope) -> int:
        """Of the heads that it turns, in part or, where widths differ, as a whole."""
        return self.head_dim if self.global_heads is None else rope.rotary_dim

    @property
    def recurrence(self) -> RecurrentConfig | None:
        """The sizes of recurrent layers; None: the family has none."""
        return self.delta or self.mamba or self.convolution

    @property
    def recurrent_layers(self) -> int:
        """The layers that have a state, beside KV or in its place."""
        return sum(layer.recurrent for layer in self.layers)

    @property
    def dense_layers(self) -> int:
        """The layers that have an MLP without experts, alone or beside some."""
        beside = self.experts is not None and self.experts.beside
        return sum(layer.has_mlp and (beside or not layer.sparse) for layer in self.layers)

    @property
    def scales_kv(self) -> bool:
        """Whether any layer's keys or values are scaled in KV memory."""
        return any((one.key_scale, one.value_scale) != (1, 1) for one in self.layers)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The distinct ropes of all layers."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope))


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Parse the config.json of any of our families; raises UnusableCheckpoint."""
    family = _family(raw)
    headless = {} if generates(raw) else {"tie_word_embeddings": True}
    try:
        given = family.today({**family.unsaid, **raw, **headless})
        _refuse_what_we_cannot(given, family)
        fields = {**_common(given), **family.differs(given)}
        _refuse_activation(fields["activation"])
        return msgspec.convert(with_layers(given, fields), ModelConfig)
    except KeyError as error:
        why = wrong_number(raw) or f"{error.args[0]} is missing"
        raise UnusableCheckpoint(f"config.json: {why}") from error
    except (TypeError, ValueError, ArithmeticError, msgspec.ValidationError) as error:
        why = wrong_number(raw) or refused_number(raw, error)
        raise UnusableCheckpoint(f"config.json: {why}") from error


def _family(raw: Mapping[str, Any]) -> Family:
    kind, architectures = raw.get("model_type"), raw.get("architectures")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None or architectures not in (None, *family.architectures):
        raise UnsupportedArchitecture(
            f"config.json: {architectures} (model_type {kind}) is not supported; "
            f"these are: {LIST}"
        )
    return family


def _refuse_what_we_cannot(raw: Mapping[str, Any], family: Family) -> None:
    for key, neutral in family.neutral.items():
        if raw.get(key) not in neutral:
            raise UnsupportedArchitecture(f"config.json: {key} {raw[key]} is not supported")


def _refuse_activation(name: str) -> None:
    known = get_args(Activation)
    if name not in known:
        why = f"hidden_act {name} is not supported; these are: {', '.join(known)}"
        raise UnsupportedArchitecture(f"config.json: {why}")


def _common(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as for Llama; families override some of them."""
    heads, layers = raw["num_attention_heads"], raw["num_hidden_layers"]
    if layers < 1:
        raise ValueError(f"num_hidden_layers {layers} has to be at least 1")
    head_dim = raw.get("head_dim") or raw["hidden_size"] // heads
    return {
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["intermediate_size"],
        "num_heads": heads,
        "num_kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": head_dim,
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "attention_scale": head_dim**-0.5,
        "activation": raw.get("hidden_activation") or raw.get("hidden_act", "silu"),
        "tied_embeddings": raw.get("tie_word_embeddings", False),
        "packing": msgspec.to_builtins(read_packing(raw)),
        "layer_types": [FULL] * layers,
        "window": None,
        "rotated": [True] * layers,
        "sparse": [False] * layers,
        "mixes": [True] * layers,
        "has_mlp": [True] * layers,
        "side_by_side": False,
        "layer_settings": [{}] * layers,
        "rope_interleaved": False,
        "partial_rotary": False,
    }
