"""The settings of a proxy. Read once; the command line is made from this.

`pdserve up` has the settings of `ProxyOptions` as well, and passes them on to its proxy.
"""

from dataclasses import dataclass, field
from typing import Literal

from api.reasoning.formats import ReasoningParser
from api.tools.dialects.known import ToolCallParser
from discovery.checks import (
    at_least,
    at_most,
    fits_in_messages,
    is_descriptor,
    is_host,
    is_port,
    not_empty,
)
from discovery.registration import DEFAULT_PORT
from proxy.admission.limits import UNLIMITED, AdmissionLimits, LoadLimit
from proxy.admission.options import LimitOptions
from proxy.serving.cors import normalized_origin

Policy = Literal["planned", "prefix_aware", "least_loaded", "session", "round_robin", "random"]
LocalPrefill = Literal["never", "auto", "always"]
Allocator = Literal["auto", "system"]
MOST_WORKERS = 256  # each is a process that needs a core to be of use
AT_LEAST = {
    "recovery_wait_s": 0.0,
    "tries": 1,
    "workers": 1,
    "foreign_timeout_s": 1.0,
    "timeline_kept": 0,
    "first_sign_timeout_s": 0.1,
    "silence_timeout_s": 3.0,
    "drain_notice_s": 0.0,
    "request_timeout_s": 0.001,
    "slow_client_timeout_s": 1.0,
}
AT_LEAST_HERE = {"drain_timeout_s": 0.0, "max_model_len": 1, "max_logprobs": -1}


@dataclass(frozen=True, kw_only=True)
class ProxyOptions(LimitOptions):
    """The settings that do not depend on where the proxy runs. No slots: UpConfig inherits from
    two dataclasses.
    """

    api_key: tuple[str, ...] = ()
    """Client API keys, any of which is accepted. Default: no key is needed."""

    api_key_file: str | None = None
    """A TOML or JSON file of API keys with names and limits; with one, a key is needed."""

    allowed_origins: tuple[str, ...] = ()
    """Origins allowed by CORS, as scheme://host:port; * for all. Default: none."""

    ssl_certfile: str | None = None
    """The proxy's TLS certificate (PEM). Default: plain HTTP."""

    ssl_keyfile: str | None = None
    """The certificate's private key. Default: in the same file."""

    ssl_ca_certs: str | None = None
    """CA that must have signed client certificates. Default: clients need none."""

    admin_api_key: str | None = None
    """The key for operators' calls, which add and change nodes; without it they are refused."""

    recovery_wait_s: float = 30.0
    """How long a request waits for a node if there is none at the moment."""

    tries: int = 4
    """How many attempts in a row may yield no token before a request fails."""

    first_sign_timeout_s: float = 10.0
    """How long a pdserve node may take to begin its answer to a call."""

    silence_timeout_s: float = 10.0
    """How long a pdserve node may be silent after that."""

    foreign_timeout_s: float | None = None
    """How long a vLLM node may be silent. Default: no limit."""

    foreign_api_key: str | None = None
    """The API key to send to vLLM nodes. Default: none."""

    request_timeout_s: float | None = None
    """Timeout of requests that set none themselves. Default: none."""

    slow_client_timeout_s: float = 60.0
    """How long a client may read next to nothing of what is ready for it."""

    policy: Policy = "planned"
    """How the nodes of the next request are chosen."""

    prefill_policy: Policy | None = None
    """How its prefill node is chosen, if not by --policy."""

    decode_policy: Policy | None = None
    """How its decode node is chosen, if not by --policy."""

    local_prefill: LocalPrefill = "never"
    """Whether decode nodes run prompts while prefill nodes are ready; auto: if cheaper."""

    otlp_traces_endpoint: str | None = None
    """Where spans are sent (OTLP over HTTP). Default: as OTEL_EXPORTER_OTLP_* say, if set."""

    timeline_kept: int = 1_000
    """How many timelines of recent requests are kept for /requests/ID; 0: none."""

    text_cache_dir: str | None = None
    """Cache of nodes' tokenizer files. Default: pdserve/text in the user's cache folder."""

    allocator: Allocator = "auto"
    """The proxy's memory allocator: TBB if installed (auto), or the C library's."""

    drain_notice_s: float = 0.0
    """How long after a signal to stop /health says 503 and new requests are still served."""

    workers: int = 1
    """How many processes serve the one port; they share what nodes register."""

    def __post_init__(self) -> None:
        """Refuse what can never work; raises ValueError, naming the flag."""
        LimitOptions.__post_init__(self)
        for name, least in AT_LEAST.items():
            at_least(least, name, getattr(self, name))
        at_most(MOST_WORKERS, "workers", self.workers)
        not_empty(self)
        if not all("!" <= letter <= "~" for letter in self.foreign_api_key or ""):
            raise ValueError("--foreign-api-key must be printable ASCII without spaces")
        for origin in self.allowed_origins:
            normalized_origin(origin)
        for name in ("ssl_keyfile", "ssl_ca_certs"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise ValueError(f"--{name.replace('_', '-')} goes with --ssl-certfile only")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig(ProxyOptions):
    """Raises ValueError, naming the flag, for a value that cannot be meant."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = 8000
    """HTTP port; 0: any free one."""

    discovery_host: str = "127.0.0.1"
    """Address to listen on for registrations of nodes."""

    discovery_port: int = DEFAULT_PORT
    """Port for registrations of nodes; 0: any free one."""

    model: str | None = None
    """Folder with a model's tokenizer files. Default: those that its nodes have."""

    tokenizer: str | None = None
    """Folder with that model's tokenizer. Default: --model, or what its nodes have."""

    served_model_name: tuple[str, ...] = ()
    """What clients and nodes call the model of --model and --tokenizer."""

    cluster_key: str | None = field(default=None, repr=False)
    """The cluster's secret: registrations that are not signed with it are ignored."""

    max_model_len: int | None = None
    """Most tokens of a prompt and its answer. Default: the least of the decode nodes."""

    generation_config: str = "auto"
    """Sampling defaults: auto: the model's file; vllm: none; a folder: its file."""

    max_logprobs: int = 20
    """Most log-probabilities that may be requested for each token; -1: no limit."""

    tool_call_parser: ToolCallParser = "auto"
    """Format of tool calls in the model's output; auto: by its chat template."""

    reasoning_parser: ReasoningParser = "none"
    """Marks around reasoning in the model's output; auto: by its chat template."""

    drain_timeout_s: float = 30.0
    """How long running streams may take after a signal to stop."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of log lines."""

    worker_of: str | None = None
    """Set by the parent of several workers, for each: where its hub is, and which one it is."""

    supervisor_fd: int | None = None
    """A socket to whoever started this process: hears when it is ready; its end ends us."""

    def __post_init__(self) -> None:
        """Check each field."""
        for name in ("port", "discovery_port"):
            is_port(name, getattr(self, name))
        for name, least in AT_LEAST_HERE.items():
            at_least(least, name, getattr(self, name))
        ProxyOptions.__post_init__(self)
        if self.workers > 1:  # who are sent these settings
            fits_in_messages(self)
        is_descriptor("supervisor_fd", self.supervisor_fd)
        if self.worker_of is not None and not self.worker_of.rpartition("/")[2].isdecimal():
            raise ValueError(f"--worker-of {self.worker_of} is set by the parent of workers")
        for name in ("host", "discovery_host"):
            is_host(name, getattr(self, name))

    @property
    def limits(self) -> AdmissionLimits:
        """The limits on running and queued requests, in all and for each node.

        No request waits for a prefill node if decode nodes may run prompts.
        """
        waits = self.local_prefill == "never"
        return AdmissionLimits(
            all=LoadLimit(self.max_requests_in_flight, self.max_tokens_in_flight),
            node=self.node_limits,
            prefill_node=self.prefill_node_limits if waits else UNLIMITED,
            queued=self.max_queued_requests,
            node_queued=self.max_queued_per_node,
        )

    @property
    def policies(self) -> tuple[Policy, Policy]:
        """The policies for prefill and for decode."""
        return self.prefill_policy or self.policy, self.decode_policy or self.policy

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients use for the model of these settings."""
        return self.served_model_name or ((self.model,) if self.model else ("model",))

    @property
    def models(self) -> frozenset[str]:
        """The names that nodes use for the model of these settings; empty: none is set."""
        return frozenset(name for name in (*self.served_model_name, self.model) if name)

    @property
    def text_folder(self) -> str | None:
        """The folder with the tokenizer; None: nodes provide it."""
        return self.tokenizer or self.model
