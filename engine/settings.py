"""What an operator can choose about an engine. Torch-free: read before torch is loaded."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """None means: as the checkpoint or the machine suggests.

    `kv_cache_memory_bytes` bounds the KV blocks, `threads` the cores of the CPU. `cpu_kernels`
    are `native`, `torch`, or `auto`: native if they can be had.
    """

    model: str
    model_impl: str = "auto"
    dtype: str = "auto"
    device: str = "cpu"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    threads: int | None = None
    cpu_kernels: str = "auto"
