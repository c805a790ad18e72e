"""The settings of one node; its command line, variables and file are made from this."""

import math
from dataclasses import dataclass, field
from typing import Literal

from api.reasoning.formats import ReasoningParser
from api.tools.dialects.known import ToolCallParser
from discovery.address import parse_address
from discovery.checks import (
    at_least,
    at_most,
    fits_in_messages,
    in_ascii,
    is_descriptor,
    is_host,
    is_port,
    not_empty,
)
from discovery.errors import MalformedAddress
from discovery.registration import DEFAULT_PORT, Role, is_plain_name
from engine.settings import LORA_FLAG, read_lora_modules, read_speculative_config
from node.kv_events.settings import FLAG as KV_EVENTS_FLAG
from node.kv_events.settings import read_kv_events_config

HTTP_PORTS = {Role.PREFILL: 8100, Role.DECODE: 8200}
KV_PORTS = {Role.PREFILL: 21001, Role.DECODE: 22001}
GIB = 1 << 30
MOST_THREADS = 1024  # more than any machine has cores; with far more, the engine crashes
_CHOSEN_IF_NONE = (
    "threads",
    "max_model_len",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """What all nodes of one cluster are given alike."""

    served_model_name: tuple[str, ...] = ()
    """Names of the model for clients; the first is registered as its own. Default: --model."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer. Default: the model's."""
    lora_modules: tuple[str, ...] = ()
    """LoRA adapters, name=path: once for each; requests give the name as their model."""
    model_impl: Literal["auto", "pdserve", "transformers"] = "auto"
    """Whose code runs the model; auto: pdserve's if it has the family."""
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    """Where weights come from: safetensors files (auto is the same), or dummy: random ones."""
    seed: int = 0
    """Seed of the weights of --load-format dummy; nodes with equal seeds have equal weights."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights, and of KV unless --kv-cache-dtype is another; auto: the checkpoint's."""
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3"] = "auto"
    """Type of KV; fp8, which is fp8_e4m3: one byte a number. auto: that of --dtype."""
    device: str = "cpu"
    """cpu, or a CUDA device: cuda, cuda:1; that needs the extra pdserve[gpu]."""
    tensor_parallel_size: int = 1
    """Processes of each node that share its model; --device is the first one's."""
    threads: int | None = None
    """Cores for an engine's kernels. Default: all; `up` divides them among nodes."""
    cpu_kernels: Literal["auto", "native", "torch"] = "auto"
    """Compiled kernels (native), plain torch, or auto: compiled ones if there is a compiler."""
    quantization: Literal["int8", "fp8", "int4"] | None = None
    """Quantize weights to 8 or 4 bits when they are loaded. Default: as they are."""
    max_model_len: int | None = None
    """Most tokens of a prompt and its answer. Default: what the model was trained for."""
    max_num_seqs: int = 64
    """Most requests in one batch."""
    max_num_batched_tokens: int | None = None
    """Most tokens of a batch; long prompts have chunks. Default: 256 or 512, off a CPU 2048."""
    block_size: int = 16
    """Tokens of one KV block; of two nodes that exchange KV, one's must divide the other's."""
    kv_cache_memory_bytes: int | None = None
    """Memory for KV blocks. Default: what all seats need, at most a quarter of what is free."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that an engine uses; KV fills what is left. Default: 0.9."""
    enforce_eager: bool = False
    """Whether decode steps run kernel by kernel: no CUDA graphs, nothing replayed on a CPU."""
    enable_prefix_caching: bool = True
    """Whether KV of earlier prompts is reused."""
    kv_offloading_size: float | None = None
    """GiB of host memory for KV blocks evicted from a GPU's memory. Default: none."""
    kv_disk_path: str | None = None
    """Folder for KV blocks evicted from the memory above. Default: none."""
    kv_disk_size: float = 16.0
    """GiB of KV blocks that each node keeps at --kv-disk-path."""
    generation_config: str = "auto"
    """Sampling defaults: auto: the model's file; vllm: none; a folder: its file."""
    max_logprobs: int = 20
    """Most log-probabilities that may be requested for each token; -1: no limit."""
    tool_call_parser: ToolCallParser = "auto"
    """Format of tool calls in the model's output; auto: by its chat template."""
    reasoning_parser: ReasoningParser = "none"
    """Marks around reasoning in the model's output; auto: by its chat template."""
    speculative_config: str | None = None
    """Speculative decoding, as JSON in vLLM's form: {"method": "ngram"}. Default: none."""
    kv_connector: Literal["nixl", "tcp"] = "nixl"
    """How KV is transferred."""
    kv_checksum: Literal["off", "sampled", "full"] = "sampled"
    """Which bytes of transferred KV are verified; the stricter of two nodes decides."""
    kv_load_failure: Literal["recompute", "fail"] = "recompute"
    """If KV is lost, late or corrupt: the decode node runs the prompt, or fails for a retry."""
    kv_events_config: str | None = None
    """Publish what the prefix cache has, by ZMQ, as JSON in vLLM's form. Default: nowhere."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    cluster_key: str | None = field(default=None, repr=False)
    """The cluster's secret: other calls are refused. Better set as PDSERVE_CLUSTER_KEY."""
    drain_timeout_s: float = 60.0
    """How long running requests may take after a signal to stop."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of log lines."""

    def __post_init__(self) -> None:
        """Refuse values that can never work, before anything is loaded."""
        for name in ("max_num_seqs", "block_size", "tensor_parallel_size"):
            at_least(1, name, getattr(self, name))
        for name in _CHOSEN_IF_NONE:
            if getattr(self, name) is not None:
                at_least(1, name, getattr(self, name))
        at_most(MOST_THREADS, "threads", self.threads)
        fits_in_messages(self)
        at_least(0, "drain_timeout_s", self.drain_timeout_s)
        at_least(-1, "max_logprobs", self.max_logprobs)
        not_empty(self)
        is_host("host", self.host)
        self._check_tiers()
        self._check_prefix_caching()
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"--gpu-memory-utilization {share} is not above 0 and up to 1")
        if self.speculative_config is not None:
            read_speculative_config(self.speculative_config)
        for module in read_lora_modules(self.lora_modules):
            if not is_plain_name(module.name):
                raise ValueError(f"{LORA_FLAG}: a name that is too long or not printable")

    @property
    def kv_cache_events(self) -> bool:
        """Whether anybody is told what happens to the prefix cache; raises ValueError."""
        return read_kv_events_config(self.kv_events_config).on

    def check_names(self, names: tuple[str, ...]) -> None:
        """Raises ValueError for one of the model's `names` that no proxy would take, or that
        is an adapter's as well.
        """
        for name in names:
            if not is_plain_name(name):
                told = f"{name!r} is too long for a model's name, or not printable"
                raise ValueError(f"{told}: set another --served-model-name")
        for module in read_lora_modules(self.lora_modules):
            if module.name in names:
                raise ValueError(f"{LORA_FLAG}: {module.name} is the name of the model itself")

    def _check_tiers(self) -> None:
        for name in ("kv_offloading_size", "kv_disk_size"):
            size = getattr(self, name)
            if size is not None and not 0 < size * GIB < math.inf:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag} {size} has to be more than 0, and finite")

    def _check_prefix_caching(self) -> None:
        for flag, asked in (
            ("--kv-disk-path", self.kv_disk_path is not None),
            ("--kv-offloading-size", self.kv_offloading_size is not None),
            (KV_EVENTS_FLAG, self.kv_cache_events),
        ):
            if asked and not self.enable_prefix_caching:
                raise ValueError(f"{flag} goes with --enable-prefix-caching only")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(ServingOptions):
    """The settings of one prefill or decode node."""

    model: str
    """Folder of a checkpoint in the Hugging Face layout, or its name on the hub."""
    port: int | None = None
    """HTTP port; 0: any free one. Default: 8100 on a prefill node, 8200 on a decode node."""
    kv_port: int | None = None
    """Port of the KV side channel; 0: any free one. Default: 21001 prefill, 22001 decode."""
    grpc_port: int | None = None
    """Port for vLLM's gRPC services; 0: any free one. Default: none (extra: pdserve[grpc])."""
    advertise_host: str | None = None
    """Host that others reach this node by. Default: --host, or our end of the route there."""
    proxy: tuple[str, ...] = (f"127.0.0.1:{DEFAULT_PORT}",)
    """Discovery address of each proxy to register with."""
    supervisor_fd: int | None = None
    """A socket to whoever started this process: hears when it is ready; its end ends us."""

    def __post_init__(self) -> None:
        """Refuse invalid ports and addresses."""
        ServingOptions.__post_init__(self)
        self.check_names(self.served_names)
        is_descriptor("supervisor_fd", self.supervisor_fd)
        if self.grpc_port is not None and self.cluster_key is not None:
            raise ValueError("--grpc-port: routers that call it cannot sign: no --cluster-key")
        for name in ("port", "kv_port", "grpc_port"):
            is_port(name, getattr(self, name) or 0)
        if self.advertise_host is not None:
            is_host("advertise_host", self.advertise_host)
        for one in self.proxy:
            try:
                parse_address(one)
            except MalformedAddress as error:
                told = f"--proxy {one} has to be HOST:PORT{in_ascii(one)}"
                raise ValueError(told) from error

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names of the model, of which the first is registered as its own."""
        return self.served_model_name or (self.model,)
