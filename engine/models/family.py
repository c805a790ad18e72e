"""A family of models: data on how its configs are read. Torch-free."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Raw = Mapping[str, Any]  # a config.json
GENERATOR, CLASSIFIER, HEADLESS = "ForCausalLM", "ForSequenceClassification", "Model"
OLD_GENERATOR = "LMHeadModel"  # GPT-2 and its contemporaries
READER = "ForConditionalGeneration"  # generates text from text and images
TEXT, VISION = "text_config", "vision_config"
TIED = "tie_word_embeddings"
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"


def as_it_is(raw: Raw) -> Raw:
    """For configs that need no translation."""
    return raw


@dataclass(frozen=True, slots=True)
class Family:
    """How the configs of one architecture are read.

    `differs` returns the fields of ModelConfig that differ from what _common of
    engine/models/config.py reads, and some from which layers are made: `layer_types` and
    `window` (see `windows`), `rotated`, whether each layer has a rope, `rope_interleaved` of
    all ropes, `partial_rotary`, whether configs may ask for it, `mixes` and `has_mlp`, whether
    each layer has such parts, `side_by_side`, whether layers keep a state beside attention, and
    `layer_settings`, further fields of each LayerPlan (engine/models/layer_plan.py).
    `unsaid` has the defaults of keys that configs leave out. `today` converts old spellings to
    today's. `neutral` names keys that we do not implement, with their values that have no
    effect; any other value is refused. `stem` is the prefix of the names of models with another
    head, or none, if it is not the prefix of `architecture`; published configs may `also` name
    the architecture so.
    """

    architecture: str
    differs: Callable[[Raw], dict[str, Any]]
    unsaid: Raw = field(default_factory=dict)
    today: Callable[[Raw], Raw] = as_it_is
    neutral: Mapping[str, Sequence[object]] = field(default_factory=dict)
    stem: str | None = None
    also: str | None = None

    @property
    def architectures(self) -> Sequence[list[str]]:
        """The architectures that its configs may name: with its own head, another, or none."""
        stem = self.stem or self.architecture.removesuffix(GENERATOR)
        named = [self.architecture, stem + CLASSIFIER, stem + HEADLESS]
        return [[name] for name in (*named, self.also) if name is not None]


def text_part(raw: Raw) -> Raw:
    """The text model's config inside that of a model of text and images.

    Whether the head is tied is said by the outer config only.
    """
    if not isinstance(raw[TEXT], Mapping):
        raise TypeError(f"{TEXT} is no object")
    return {**raw, **raw[TEXT], TIED: raw[TIED]}


def sees(raw: Raw) -> bool:
    """Whether the model is for text and images."""
    return TEXT in raw or VISION in raw


def generates(raw: Raw) -> bool:
    """Whether the model has a language model head."""
    names = raw.get("architectures") or (GENERATOR,)
    return any(str(name).endswith((GENERATOR, OLD_GENERATOR, READER)) for name in names)


def classifies(raw: Raw) -> bool:
    """Whether the model has a classification head."""
    return any(str(name).endswith(CLASSIFIER) for name in raw.get("architectures") or ())


def windows(raw: Raw, kinds: Sequence[str] | None = None) -> dict[str, Any]:
    """`sliding_window` in the layers that `layer_types` names; `kinds` is its default."""
    said = raw.get("layer_types") or kinds
    said = [SLIDING] * raw["num_hidden_layers"] if said is None else said
    return {"layer_types": said, "window": raw["sliding_window"]}


def every(raw: Raw, period: int) -> list[str]:
    """Layer types: every `period`-th layer attends fully, the others (0: all) in a window.

    Some configs have a word as their period, which is for models that name their layers too.
    """
    if not isinstance(period, int):
        raise TypeError(f"sliding_window_pattern has to be a number, and is {period!r}")
    count: int = raw["num_hidden_layers"]
    return [SLIDING if not period or (at + 1) % period else FULL for at in range(count)]


def llama(raw: Raw) -> dict[str, Any]:
    """Llama's differences: biases, if the config asks for them."""
    bias = raw.get("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": raw.get("mlp_bias", False)}


def routing(raw: Raw, *, normalised: bool, **settings: object) -> dict[str, Any]:
    """The routing; configs name the number of experts in two ways, and DeepSeek in a third."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    said = [raw[name] for name in names if name in raw]
    if not said:
        raise KeyError(" or ".join(names))
    top_k = raw["num_experts_per_tok"]
    return {"num_experts": said[0], "top_k": top_k, "normalised": normalised, **settings}
