"""Reads a LoRA adapter as PEFT saves it: adapter_config.json and adapter_model.safetensors.

    y = W x + scale * B A x          (Hu et al. 2021, "LoRA", section 4.1)

What a variant of LoRA would compute otherwise is refused by the name of its setting, and so is
a tensor that is no factor of a linear layer.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from engine.errors import UnusableAdapter

CONFIG, WEIGHTS = FILES = "adapter_config.json", "adapter_model.safetensors"
BASE, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
DIGEST_BYTES = 16
PLAIN_SETTINGS = frozenset(
    {
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_ga_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
"""Settings that we follow, or that tell nothing of what is computed."""
KEEPS_BASE = ("gaussian", "eva", "orthogonal", "mica")
"""Values of init_lora_weights with which training began from the base model's own weights."""


@dataclass(frozen=True, slots=True, eq=False)
class LoraFactors:
    """One linear layer's A, [rank, inputs], and B, [outputs, rank], in any float dtype.

    What they make is multiplied by `scale`.
    """

    down: Tensor
    up: Tensor
    scale: float

    @property
    def rank(self) -> int:
        """The numbers between A and B."""
        return len(self.down)


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter's factors by the layer's name, such as `model.layers.0.self_attn.q_proj`.

    `digest` is of the files that they were read from.
    """

    name: str
    factors: Mapping[str, LoraFactors]
    digest: str

    def renamed(self, name_of: Callable[[str], str | None]) -> "LoraAdapter":
        """Its layers under other names, without those that have none.

        Raises UnusableAdapter if none is left, or if two layers get one name.
        """
        named = [(name_of(layer), one) for layer, one in self.factors.items()]
        kept = {layer: one for layer, one in named if layer is not None}
        if not kept or len(kept) != sum(layer is not None for layer, _ in named):
            told = "two layers are the same one" if kept else "no layer is of the text model"
            raise UnusableAdapter(f"adapter {self.name}: {told}")
        return LoraAdapter(self.name, kept, self.digest)


class _Config(msgspec.Struct, frozen=True):
    """The settings that we follow; see PEFT's LoraConfig."""

    peft_type: str
    r: int
    lora_alpha: float
    use_rslora: bool = False
    alpha_pattern: dict[str, float] | None = None
    init_lora_weights: bool | str | None = True

    def scale_of(self, layer: str, rank: int) -> float:
        """What B's results are multiplied with: alpha / rank, or alpha / sqrt(rank) for
        rank-stabilized LoRA (Kalajdzievski 2023).
        """
        found = (alpha for key, alpha in (self.alpha_pattern or {}).items() if _is(key, layer))
        alpha = next(found, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_adapter(name: str, folder: Path) -> LoraAdapter:
    """Read the adapter in `folder`; raises UnusableAdapter."""
    try:
        config, weights = ((folder / file).read_bytes() for file in FILES)
        return LoraAdapter(name, _factors(config, weights), _digest(config, weights))
    except OSError as error:
        raise UnusableAdapter(f"adapter {name}: {error}") from error
    except UnusableAdapter as error:
        raise UnusableAdapter(f"adapter {name}, in {folder}: {error}") from error


def _digest(*contents: bytes) -> str:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for content in contents:
        digest.update(b"%d " % len(content))
        digest.update(content)
    return digest.hexdigest()


def _factors(config: bytes, weights: bytes) -> dict[str, LoraFactors]:
    """All layers' factors."""
    followed = _config(config)
    try:
        tensors = load(weights)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UnusableAdapter(f"{WEIGHTS}: {error}") from error
    factors = dict[str, LoraFactors]()
    for tensor in tensors:
        layer = tensor.removeprefix(BASE).removesuffix(DOWN).removesuffix(UP)
        if not tensor.startswith(BASE) or layer == tensor.removeprefix(BASE):
            raise UnusableAdapter(f"tensor {tensor} is no LoRA factor of a linear layer")
        if layer not in factors:
            factors[layer] = _factors_of(tensors, layer, followed)
    if not factors:
        raise UnusableAdapter(f"{WEIGHTS} has no tensors")
    return factors


def _config(content: bytes) -> _Config:
    try:
        settings = msgspec.json.decode(content, type=dict[str, Any])
        followed = msgspec.convert(settings, _Config, strict=False)
        for pattern in followed.alpha_pattern or ():
            re.compile(pattern)
    except (msgspec.MsgspecError, re.error) as error:
        raise UnusableAdapter(f"{CONFIG}: {error}") from error
    if followed.peft_type != "LORA":
        raise UnusableAdapter(f"{CONFIG}: peft_type {followed.peft_type} is not LORA")
    for key, value in settings.items():
        if key not in PLAIN_SETTINGS and _is_on(key, value):
            raise UnusableAdapter(f"{CONFIG}: {key} {value!r} is not supported")
    start = followed.init_lora_weights
    if isinstance(start, str) and start.lower() not in KEEPS_BASE:
        raise UnusableAdapter(
            f"{CONFIG}: init_lora_weights {start!r} may change the base model's weights; PEFT "
            "can save such an adapter as a plain one (path_initial_model_for_weight_conversion)"
        )
    return followed


def _is_on(key: str, value: object) -> bool:
    """Whether a setting that we do not know may turn on a variant of LoRA; numbers do not."""
    if key == "bias":
        return value != "none"
    return value is True or (isinstance(value, dict | list | str) and bool(value))


def _factors_of(tensors: Mapping[str, Tensor], layer: str, config: _Config) -> LoraFactors:
    names = f"{BASE}{layer}{DOWN}", f"{BASE}{layer}{UP}"
    for name in names:
        if name not in tensors:
            raise UnusableAdapter(f"tensor {name} is missing")
        if tensors[name].dim() != 2 or not tensors[name].is_floating_point():
            raise UnusableAdapter(f"tensor {name} is no matrix of a linear layer's factor")
        if not tensors[name].isfinite().all():
            raise UnusableAdapter(f"tensor {name} has numbers that are not finite")
    down, up = (tensors[name] for name in names)
    rank = len(down)
    if not rank or up.shape[1] != rank:
        shapes = f"{tuple(down.shape)}, and B is {tuple(up.shape)}"
        raise UnusableAdapter(f"{layer}: A is {shapes}: their ranks differ")
    return LoraFactors(down, up, config.scale_of(layer, rank))


def _is(pattern: str, layer: str) -> bool:
    """Whether a key of PEFT's patterns is about this layer: the end of its name, or a regex."""
    return re.fullmatch(rf"(.*\.)?({pattern})", layer) is not None
