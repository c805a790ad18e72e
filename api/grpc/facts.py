"""What a server tells routers of itself by gRPC."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.api import EngineLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts that do not change, and calls for those that do.

    `model` and `tokenizer` are folders or names on the hub: routers load the tokenizer from
    there. `names` are the model's for clients, its own first. `adapters` are names and paths.
    `fingerprint` is the same on all nodes that can exchange KV. `kv_role` is what vLLM calls
    the legs that this node takes. `trouble` is None while the engine is healthy.
    `kv_event_sources`: see GET /kv_event_sources. `started` is a time of day in seconds.
    """

    model: str
    tokenizer: str
    names: Sequence[str]
    adapters: Sequence[tuple[str, str]]
    generates: bool
    reads_text: bool
    model_type: str
    architectures: Sequence[str]
    vocab_size: int
    max_model_len: int
    block_size: int
    max_num_seqs: int
    max_batched_tokens: int
    kv_dtype: str
    dtype: str
    tensor_parallel_size: int
    instance_id: str
    fingerprint: str
    reasoning_parser: str
    tool_call_parser: str
    default_sampling_json: str
    started: float
    kv_role: Callable[[], str]
    load: Callable[[], EngineLoad]
    trouble: Callable[[], str | None]
    kv_event_sources: Mapping[str, Mapping[str, object]]
