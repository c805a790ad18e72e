"""What an operator can choose about an engine. Torch-free: read before torch is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

MOST_SPECULATIVE_TOKENS = 64
DRAFT_TOKENS, HEAD_TOKENS = 8, 3  # a head's further drafts are made of its own, and get worse
LONGEST_LOOKUP = 64
LORA_FLAG = "--lora-modules"
SPECULATIVE_FLAG = "--speculative-config"
SpeculativeMethod = Literal["ngram", "draft_model", "mtp", "eagle3"]


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding, with vLLM's names: at most `num_speculative_tokens` per draft.

    `ngram` searches the sequence for an earlier occurrence of its last tokens: at most
    `prompt_lookup_max` and at least `prompt_lookup_min` of them. `draft_model` asks the smaller
    `model`, a folder or a hub name; it is the default if there is one. `mtp` asks the
    checkpoint's own layer for multi-token prediction, and `eagle3` the EAGLE-3 head `model`.
    Batches in which more than `disable_by_batch_size` sequences decode have no drafts; None:
    the engine chooses.
    """

    method: SpeculativeMethod | None = None
    model: str | None = None
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=MOST_SPECULATIVE_TOKENS)] | None = None
    disable_by_batch_size: Annotated[int, Meta(ge=1)] | None = None
    prompt_lookup_max: Annotated[int, Meta(ge=1, le=LONGEST_LOOKUP)] = 4
    prompt_lookup_min: Annotated[int, Meta(ge=1, le=LONGEST_LOOKUP)] = 2

    def __post_init__(self) -> None:
        """Raises ValueError for bounds that cross, and for a method without what it needs."""
        if self.prompt_lookup_min > self.prompt_lookup_max:
            bounds = f"{self.prompt_lookup_min} is more than {self.prompt_lookup_max}"
            raise ValueError(f"prompt_lookup_min {bounds}, which is prompt_lookup_max")
        if self.model is not None and not self.model.strip():
            raise ValueError("the model is empty")
        if self.method in ("draft_model", "eagle3") and self.model is None:
            raise ValueError(f"method {self.method} needs a model")
        if self.method in ("ngram", "mtp") and self.model is not None:
            raise ValueError(f"method {self.method} has no model")

    @property
    def has_head(self) -> bool:
        """Whether a draft head drafts, from the model's hidden states."""
        return self.method in ("mtp", "eagle3")

    @property
    def has_draft_model(self) -> bool:
        """Whether a smaller model drafts."""
        return self.model is not None and not self.has_head

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest draft."""
        return self.num_speculative_tokens or (HEAD_TOKENS if self.has_head else DRAFT_TOKENS)


def read_speculative_config(text: str) -> SpeculativeConfig:
    """Parse the JSON; raises a ValueError that names the setting and the field."""
    try:
        return msgspec.json.decode(text, type=SpeculativeConfig)
    except msgspec.MsgspecError as error:
        known = ", ".join(get_args(SpeculativeMethod))
        methods = f"; methods are {known}" if "`$.method`" in str(error) else ""
        raise ValueError(f"{SPECULATIVE_FLAG}: {error}{methods}") from error


class LoraModule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A LoRA adapter: the `name` that requests give as their model, and the folder at `path`.

    The other fields are vLLM's, and are not used.
    """

    name: str
    path: str
    base_model_name: str | None = None
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a name or path that is empty."""
        for field in ("name", "path"):
            if not getattr(self, field).strip():
                raise ValueError(f"the {field} is empty")


def read_lora_modules(texts: Sequence[str]) -> tuple[LoraModule, ...]:
    """Parse each `name=path`, or JSON as vLLM's; raises a ValueError that names the setting."""
    found = dict[str, LoraModule]()
    for text in texts:
        module = _read_lora_module(text)
        if module.name in found:
            raise ValueError(f"{LORA_FLAG}: two adapters have the name {module.name}")
        found[module.name] = module
    return tuple(found.values())


def _read_lora_module(text: str) -> LoraModule:
    name, equals, path = text.partition("=")
    try:
        if text.lstrip().startswith("{"):
            return msgspec.json.decode(text, type=LoraModule)
        if not equals:
            raise ValueError("it has to be name=path")
        return LoraModule(name=name.strip(), path=path.strip())
    except ValueError as error:  # msgspec's, too
        raise ValueError(f"{LORA_FLAG} {text}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """An engine's settings. None means: as the checkpoint or the machine suggests.

    `kv_cache_memory_bytes` bounds the KV cache; on a device with its own memory so does
    `gpu_memory_utilization`, a share of all of that memory. `enforce_eager` disables CUDA
    graphs, and replayed steps on a CPU. `threads` is the number of CPU cores to use.
    `kv_cache_dtype` is `auto`, the model's type, or `fp8`, also called `fp8_e4m3`.
    `cpu_kernels` is `native`, `torch`, or `auto`: native if available. `quantization` is `fp8`
    or `int4`, or on a CPU `int8`. `speculative_config` is a SpeculativeConfig in
    JSON; None: no drafts. `kv_offloading_size` is GiB of host memory below a GPU's KV memory,
    and `kv_disk_size` GiB of disk below that, at `kv_disk_path`; None: no such tier.
    `load_format` is `auto` or `safetensors`, or `dummy`: weights generated from `seed`.
    `tensor_parallel_size` is the number of ranks that share the model; if more than one, the
    other ranks are started before the engine is opened. `lora_modules` are the LoRA adapters
    that requests may name, in the form that `read_lora_modules` reads. With `kv_cache_events`
    steps report what happens to the prefix cache.
    """

    model: str
    model_impl: str = "auto"
    load_format: str = "auto"
    seed: int = 0
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    device: str = "cpu"
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    threads: int | None = None
    cpu_kernels: str = "auto"
    quantization: str | None = None
    lora_modules: tuple[str, ...] = ()
    speculative_config: str | None = None
    kv_offloading_size: float | None = None
    kv_disk_path: str | None = None
    kv_disk_size: float = 16.0
    kv_cache_events: bool = False

    @property
    def dummy_seed(self) -> int | None:
        """The seed of dummy weights; None if the weights are read from the checkpoint."""
        return self.seed if self.load_format == "dummy" else None
