"""The settings of one node; its command line, variables and file are made from this."""

import math
from dataclasses import dataclass, field
from typing import Literal

from api.reasoning.formats import ReasoningParser
from api.tools.dialects.known import ToolCallParser
from discovery.address import parse_address
from discovery.checks import at_least, is_port, not_empty
from discovery.errors import MalformedAddress
from discovery.registration import DEFAULT_PORT, Role, is_plain_name
from engine.settings import LORA_FLAG, read_lora_modules, read_speculative_config

HTTP_PORTS = {Role.PREFILL: 8100, Role.DECODE: 8200}
KV_PORTS = {Role.PREFILL: 21001, Role.DECODE: 22001}
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
    """What clients call the model; the first is shown. Default: as --model says."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer. Default: the model's own."""
    lora_modules: tuple[str, ...] = ()
    """LoRA adapters, each as name=path; clients ask for one by giving its name as model."""
    model_impl: Literal["auto", "pdserve", "transformers"] = "auto"
    """Whose code runs the model; auto takes ours where we have the family."""
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    """Where weights come from: safetensors files, as auto is, or dummy: random ones."""
    seed: int = 0
    """Of what --load-format dummy makes up; nodes with the same one have the same weights."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and KV; auto takes the checkpoint's."""
    device: str = "cpu"
    """Any torch device."""
    tensor_parallel_size: int = 1
    """Processes of each node that share out its model; --device is the first one's."""
    threads: int | None = None
    """Cores for an engine's kernels. Default: the machine's; `up` shares them among nodes."""
    cpu_kernels: Literal["auto", "native", "torch"] = "auto"
    """Compiled kernels, plain torch, or compiled ones where there is a compiler."""
    quantization: Literal["int8", "fp8", "int4"] | None = None
    """Weights of 8 or 4 bits, made from the checkpoint's. Default: as they are."""
    max_model_len: int | None = None
    """Longest prompt plus answer, in tokens. Default: what the model was trained for."""
    max_num_seqs: int = 64
    """Most requests in one batch."""
    max_num_batched_tokens: int | None = None
    """Most tokens in one batch; longer prompts run in chunks. Default: 256, off a CPU 2048."""
    block_size: int = 16
    """Tokens of one KV block; of nodes that work together one's divides the other's."""
    kv_cache_memory_bytes: int | None = None
    """Memory for KV blocks. Default: what all seats need, at most a quarter of what is free."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that an engine takes, KV filling what is left. Default: 0.9."""
    enforce_eager: bool = False
    """Whether decode steps run kernel by kernel: no CUDA graphs, nothing replayed on a CPU."""
    enable_prefix_caching: bool = True
    """Whether KV of earlier prompts is used again."""
    kv_offloading_size: float | None = None
    """GiB of host memory for KV blocks that a GPU's memory forgets. Default: none."""
    kv_disk_path: str | None = None
    """Folder for KV blocks that the memory above it forgets. Default: none."""
    kv_disk_size: float = 16.0
    """GiB that each node keeps at --kv-disk-path."""
    generation_config: str = "auto"
    """Defaults of sampling: auto takes the model's file, vllm none, a folder another file."""
    max_logprobs: int = 20
    """Most log-probabilities that may be asked for beside each token; -1: any number."""
    tool_call_parser: ToolCallParser = "auto"
    """How the model writes calls of tools: auto knows by its chat template."""
    reasoning_parser: ReasoningParser = "none"
    """What marks are around reasoning, which is no content then: auto knows as well."""
    speculative_config: str | None = None
    """JSON as vLLM's: how tokens are foretold, such as {"method": "ngram"}. Default: not."""
    kv_connector: Literal["nixl", "tcp"] = "nixl"
    """How KV travels."""
    kv_checksum: Literal["off", "sampled", "full"] = "sampled"
    """Which bytes of KV are compared with what was sent; the more careful node decides."""
    kv_load_failure: Literal["recompute", "fail"] = "recompute"
    """Where KV is lost, late or wrong: who decodes runs the prompt, or fails, for a retry."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    cluster_key: str | None = field(default=None, repr=False)
    """Who does not sign with it has no entry. Better given as PDSERVE_CLUSTER_KEY than here."""
    drain_timeout_s: float = 60.0
    """How long a process that is told to stop goes on with what it runs."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is logged."""

    def __post_init__(self) -> None:
        """Refuse values that can never work, before anything is loaded."""
        for name in ("max_num_seqs", "block_size", "tensor_parallel_size"):
            at_least(1, name, getattr(self, name))
        for name in _CHOSEN_IF_NONE:
            if getattr(self, name) is not None:
                at_least(1, name, getattr(self, name))
        at_least(0, "drain_timeout_s", self.drain_timeout_s)
        at_least(-1, "max_logprobs", self.max_logprobs)
        not_empty(self)
        self._check_tiers()
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"--gpu-memory-utilization {share} is not above 0 and up to 1")
        if self.speculative_config is not None:
            read_speculative_config(self.speculative_config)
        for module in read_lora_modules(self.lora_modules):
            if not is_plain_name(module.name):
                raise ValueError(f"{LORA_FLAG}: a name that is too long or not printable")

    def refuse_ambiguous_adapters(self, names: tuple[str, ...]) -> None:
        """Raises ValueError if an adapter is called as one of the model's `names`."""
        for module in read_lora_modules(self.lora_modules):
            if module.name in names:
                raise ValueError(f"{LORA_FLAG}: {module.name} is the name of the model itself")

    def _check_tiers(self) -> None:
        for name in ("kv_offloading_size", "kv_disk_size"):
            size = getattr(self, name)
            if size is not None and not 0 < size < math.inf:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag} {size} has to be more than 0, and finite")
        tiered = self.kv_offloading_size is not None or self.kv_disk_path is not None
        if tiered and not self.enable_prefix_caching:
            flag = "--kv-disk-path" if self.kv_disk_path else "--kv-offloading-size"
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
    advertise_host: str | None = None
    """Where others reach this node. Default: --host, or our end of the way to the proxy."""
    proxy: tuple[str, ...] = (f"127.0.0.1:{DEFAULT_PORT}",)
    """Discovery address of each proxy to register with."""
    supervisor_fd: int | None = None
    """A socket to whoever started this process: hears when it is ready; its end ends us."""

    def __post_init__(self) -> None:
        """Refuse invalid ports and addresses."""
        ServingOptions.__post_init__(self)
        self.refuse_ambiguous_adapters(self.served_names)
        for name in ("port", "kv_port"):
            is_port(name, getattr(self, name) or 0)
        for one in self.proxy:
            try:
                parse_address(one)
            except MalformedAddress as error:
                raise ValueError(f"--proxy {one} has to be HOST:PORT") from error

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names of the model, of which the first is registered as its own."""
        return self.served_model_name or (self.model,)
