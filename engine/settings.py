"""What an operator can choose about an engine. Torch-free: read before torch is loaded."""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MOST_SPECULATIVE_TOKENS = 64
LONGEST_LOOKUP = 64


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding, in vLLM's words: `num_speculative_tokens` at most per draft.

    `ngram` looks where the last tokens stood before, `prompt_lookup_max` of them or fewer, but
    no fewer than `prompt_lookup_min`.
    """

    method: Literal["ngram"] = "ngram"
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=MOST_SPECULATIVE_TOKENS)] = 8
    prompt_lookup_max: Annotated[int, Meta(ge=1, le=LONGEST_LOOKUP)] = 4
    prompt_lookup_min: Annotated[int, Meta(ge=1, le=LONGEST_LOOKUP)] = 2

    def __post_init__(self) -> None:
        """Raises ValueError for bounds that leave nothing between them."""
        if self.prompt_lookup_min > self.prompt_lookup_max:
            bounds = f"{self.prompt_lookup_min} is more than {self.prompt_lookup_max}"
            raise ValueError(f"prompt_lookup_min {bounds}, which is prompt_lookup_max")


def read_speculative_config(text: str) -> SpeculativeConfig:
    """From JSON; raises ValueError that names the setting and the field."""
    try:
        return msgspec.json.decode(text, type=SpeculativeConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(f"--speculative-config: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """None means: as the checkpoint or the machine suggests.

    `kv_cache_memory_bytes` bounds the KV blocks, and so does, on a device with memory of its
    own, `gpu_memory_utilization`, a share of all that it has; `enforce_eager` goes without
    graphs there, and without replayed steps on a CPU. `threads` are the cores of the CPU.
    `cpu_kernels` are `native`, `torch`, or `auto`: native if they can be had. `quantization`
    is `int8` on a CPU, `fp8` or `int4` on a GPU. `speculative_config` is JSON of a
    SpeculativeConfig; None: no drafts. `kv_offloading_size` is GiB of host memory below
    a GPU's KV memory, `kv_disk_size` GiB of disk below that, at `kv_disk_path`; None: no such
    tier. `load_format` is `auto` or `safetensors`, or `dummy`: weights made up from `seed`.
    `tensor_parallel_size` is how many ranks share out the model; more than one are started
    before the engine is opened.
    """

    model: str
    model_impl: str = "auto"
    load_format: str = "auto"
    seed: int = 0
    dtype: str = "auto"
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
    speculative_config: str | None = None
    kv_offloading_size: float | None = None
    kv_disk_path: str | None = None
    kv_disk_size: float = 16.0

    @property
    def dummy_seed(self) -> int | None:
        """Of weights that are made up; None: they are read."""
        return self.seed if self.load_format == "dummy" else None
