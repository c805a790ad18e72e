"""The settings of a proxy. Read once; the command line is made from this.

`pdserve up` has the settings of `ProxyOptions` as well, and passes them on to its proxy.
"""

from dataclasses import dataclass, field
from typing import Literal

from api.reasoning.formats import ReasoningParser
from api.tools.dialects.known import ToolCallParser
from discovery.checks import at_least, is_port, not_empty
from discovery.registration import DEFAULT_PORT
from proxy.admission.limits import QUEUED, UNLIMITED, AdmissionLimits, KeyLimits, LoadLimit
from proxy.serving.cors import normalized_origin

Policy = Literal["planned", "prefix_aware", "least_loaded", "session", "round_robin", "random"]
LocalPrefill = Literal["never", "auto", "always"]
Allocator = Literal["auto", "system"]
AT_LEAST = {
    "recovery_wait_s": 0.0,
    "tries": 1,
    "workers": 1,
    "foreign_timeout_s": 1.0,
    "timeline_kept": 0,
    "first_sign_timeout_s": 0.1,
    "silence_timeout_s": 3.0,
    "drain_notice_s": 0.0,
    "max_requests_in_flight": 1,
    "max_tokens_in_flight": 1,
    "max_queued_requests": 0,
    "max_requests_per_key": 1,
    "max_tokens_per_key": 1,
    "max_queued_per_key": 0,
    "requests_per_minute_per_key": 1,
    "tokens_per_minute_per_key": 1,
    "max_requests_per_node": 1,
    "max_tokens_per_node": 1,
    "max_queued_per_node": 0,
    "max_requests_per_prefill_node": 1,
    "max_tokens_per_prefill_node": 1,
    "request_timeout_s": 0.001,
    "slow_client_timeout_s": 1.0,
}
AT_LEAST_HERE = {"drain_timeout_s": 0.0, "max_model_len": 1, "max_logprobs": -1}


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """The settings that do not depend on where the proxy runs. No slots: UpConfig inherits from
    two dataclasses.
    """

    api_key: tuple[str, ...] = ()
    """Keys of clients, any of which opens the door; without one it is open."""

    api_key_file: str | None = None
    """A file of keys with names and limits, TOML or JSON; with one, clients need a key."""

    allowed_origins: tuple[str, ...] = ()
    """Whose pages may ask from a browser, as scheme://host:port; * for all. Default: none."""

    ssl_certfile: str | None = None
    """The proxy's certificate, PEM; with one, clients come by HTTPS."""

    ssl_keyfile: str | None = None
    """Its key; by default it is in the same file."""

    ssl_ca_certs: str | None = None
    """Who has to have signed a client's certificate; by default clients need none."""

    admin_api_key: str | None = None
    """The key for adding nodes by hand; without it that is not possible."""

    recovery_wait_s: float = 30.0
    """How long a request waits for a node when there is none at the moment."""

    tries: int = 4
    """How many attempts in a row may bring no token before a request fails."""

    first_sign_timeout_s: float = 10.0
    """How long a node of ours may take to begin its answer to a call."""

    silence_timeout_s: float = 10.0
    """How long it may be silent from then on."""

    foreign_timeout_s: float | None = None
    """How long a node that is not ours may be silent. Default: as long as it takes."""

    foreign_api_key: str | None = None
    """What nodes that are not ours are to be sent as their key; by default none."""

    max_requests_in_flight: int | None = None
    """Most choices at work at once; more wait in line. Default: any number."""

    max_tokens_in_flight: int | None = None
    """Most tokens at work at once, of prompts and answers. Default: any number."""

    max_queued_requests: int = QUEUED
    """Most requests in line; more are refused."""

    max_requests_per_key: int | None = None
    """Most choices at work at once for one client key. Default: any number."""

    max_tokens_per_key: int | None = None
    """Most tokens at work at once for one client key. Default: any number."""

    max_queued_per_key: int | None = None
    """Most requests in line with one client key. Default: as many as in all."""

    requests_per_minute_per_key: int | None = None
    """Most calls of one client key that begin in a minute. Default: any number."""

    tokens_per_minute_per_key: int | None = None
    """Most tokens of them, of prompts and answers. Default: any number."""

    max_requests_per_node: int | None = None
    """Most choices that this proxy has at work on one decode node. Default: any number."""

    max_tokens_per_node: int | None = None
    """Most tokens that this proxy has at work on one decode node. Default: any number."""

    max_queued_per_node: int | None = None
    """Most requests in line for each decode node of their model. Default: as many as in all."""

    max_requests_per_prefill_node: int | None = None
    """Most prompts of this proxy at one prefill node. Default: any number."""

    max_tokens_per_prefill_node: int | None = None
    """Most tokens of prompts of this proxy at one prefill node. Default: any number."""

    request_timeout_s: float | None = None
    """How long a request may take that says nothing of it itself. Default: any time."""

    slow_client_timeout_s: float = 60.0
    """How long a client may take next to nothing of what there is for it."""

    policy: Policy = "planned"
    """Which nodes get the next request."""

    prefill_policy: Policy | None = None
    """Which prefill node, if not by --policy."""

    decode_policy: Policy | None = None
    """Which decode node, if not by --policy."""

    local_prefill: LocalPrefill = "never"
    """Whether decode nodes run prompts while prefill nodes are ready: auto if it is cheaper."""

    otlp_traces_endpoint: str | None = None
    """Where spans go, by OTLP over HTTP; without it OTEL_EXPORTER_OTLP_* say, if anything."""

    timeline_kept: int = 1_000
    """How many of the last requests' timelines are kept for /requests/ID; 0: none."""

    text_cache_dir: str | None = None
    """Where text files that nodes gave are kept. Default: pdserve/text in the user's cache."""

    allocator: Allocator = "auto"
    """Who gives the proxy memory: TBB where it is installed (auto), or the C library."""

    drain_notice_s: float = 0.0
    """How long before that /health says 503 and new requests are still answered."""

    workers: int = 1
    """How many processes serve behind the one port; they share what nodes say."""

    def __post_init__(self) -> None:
        """Refuse what can never work; raises ValueError, naming the flag."""
        for name, least in AT_LEAST.items():
            if (value := getattr(self, name)) is not None:
                at_least(least, name, value)
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
    """The address that clients come to."""

    port: int = 8000
    """Its port; 0 lets the system pick one."""

    discovery_host: str = "127.0.0.1"
    """The address that nodes announce themselves to."""

    discovery_port: int = DEFAULT_PORT
    """Its port; 0 lets the system pick one."""

    model: str | None = None
    """A model whose text is made with this folder, whatever its nodes bring. Default: none."""

    tokenizer: str | None = None
    """A folder with the tokenizer of that model. Default: --model's, or what nodes bring."""

    served_model_name: tuple[str, ...] = ()
    """What clients and nodes call the model that --model and --tokenizer are of."""

    cluster_key: str | None = field(default=None, repr=False)
    """A secret of the whole cluster: who does not sign with it is not listened to."""

    max_model_len: int | None = None
    """The longest prompt and answer together. Default: the shortest of the decode nodes."""

    generation_config: str = "auto"
    """Defaults of sampling: auto takes the model's file, vllm none, a folder another file."""

    max_logprobs: int = 20
    """Most log-probabilities that may be asked for beside each token; -1: any number."""

    tool_call_parser: ToolCallParser = "auto"
    """How the model writes calls of tools: auto knows by its chat template."""

    reasoning_parser: ReasoningParser = "none"
    """What marks are around reasoning, which is no content then: auto knows as well."""

    drain_timeout_s: float = 30.0
    """How long running streams have after a signal to stop."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged."""

    worker_of: str | None = None
    """Set by the parent of several workers, for each: where its hub is, and which one it is."""

    supervisor_fd: int | None = None
    """A socket to whoever started this process: hears when it is ready; its end ends us."""

    def __post_init__(self) -> None:
        """Check each field."""
        for name in ("port", "discovery_port"):
            is_port(name, getattr(self, name))
        for name, least in AT_LEAST_HERE.items():
            if (value := getattr(self, name)) is not None:
                at_least(least, name, value)
        ProxyOptions.__post_init__(self)

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
    def node_limits(self) -> LoadLimit:
        """The limits of one decode node."""
        return LoadLimit(self.max_requests_per_node, self.max_tokens_per_node)

    @property
    def prefill_node_limits(self) -> LoadLimit:
        """The limits of one prefill node."""
        return LoadLimit(self.max_requests_per_prefill_node, self.max_tokens_per_prefill_node)

    @property
    def key_limits(self) -> KeyLimits:
        """The limits of a key that has none of its own."""
        return KeyLimits(
            max_requests=self.max_requests_per_key,
            max_tokens=self.max_tokens_per_key,
            max_queued=self.max_queued_per_key,
            requests_per_minute=self.requests_per_minute_per_key,
            tokens_per_minute=self.tokens_per_minute_per_key,
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
