"""What a family of models is to us: data on how its configs are read. Torch-free."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Raw = Mapping[str, Any]  # a config.json
GENERATOR, CLASSIFIER, HEADLESS = "ForCausalLM", "ForSequenceClassification", "Model"
OLD_GENERATOR = "LMHeadModel"  # GPT-2 and its time
READER = "ForConditionalGeneration"  # of text that follows from images, or from none
TEXT = "text_config"
SLIDING, FULL = "sliding_attention", "full_attention"


def as_it_is(raw: Raw) -> Raw:
    """The config says everything in today's words."""
    return raw


@dataclass(frozen=True, slots=True)
class Family:
    """How the configs of one architecture are read.

    `differs` answers fields of ModelConfig that are not what _common of
    engine/models/config.py makes of the config, and some that layers are made of:
    `layer_types` and `window` (see `windows`), `rotated`, whether each layer has a rope,
    `rope_interleaved` of all ropes, and `partial_rotary`, whether configs may ask for it.
    `unsaid` is what configs mean by the keys they leave out. `today` puts old spellings into
    those of today. `neutral` names keys that we do not honour, with the values that ask for
    nothing; any other is refused. `stem` begins the names of models with another head, or
    none, where that is not what `architecture` begins with.
    """

    architecture: str
    differs: Callable[[Raw], dict[str, Any]]
    unsaid: Raw = field(default_factory=dict)
    today: Callable[[Raw], Raw] = as_it_is
    neutral: Mapping[str, Sequence[object]] = field(default_factory=dict)
    stem: str | None = None

    @property
    def architectures(self) -> Sequence[list[str]]:
        """What the configs of its models name: with its own head, another, or none."""
        stem = self.stem or self.architecture.removesuffix(GENERATOR)
        return [[self.architecture], [stem + CLASSIFIER], [stem + HEADLESS]]


def text_part(raw: Raw) -> Raw:
    """A model of text and images, as the model of its text."""
    return {**raw, **raw[TEXT]}


def generates(raw: Raw) -> bool:
    """Whether there is a head that foretells tokens."""
    names = raw.get("architectures") or (GENERATOR,)
    return any(str(name).endswith((GENERATOR, OLD_GENERATOR, READER)) for name in names)


def classifies(raw: Raw) -> bool:
    """Whether there is a head that tells classes apart."""
    return any(str(name).endswith(CLASSIFIER) for name in raw.get("architectures") or ())


def windows(raw: Raw, kinds: Sequence[str] | None = None) -> dict[str, Any]:
    """`sliding_window` in the layers that `layer_types` names; `kinds` where it is left out."""
    said = raw.get("layer_types") or kinds
    said = [SLIDING] * raw["num_hidden_layers"] if said is None else said
    return {"layer_types": said, "window": raw["sliding_window"]}


def every(raw: Raw, period: int) -> list[str]:
    """Every `period`-th layer sees all, the others a window; none sees all where it is 0."""
    count: int = raw["num_hidden_layers"]
    return [SLIDING if not period or (at + 1) % period else FULL for at in range(count)]


def llama(raw: Raw) -> dict[str, Any]:
    """Biases where configs of its kind ask for them."""
    bias = raw.get("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": raw.get("mlp_bias", False)}
