"""The flags of limits: of the proxy, of each client key, of each node."""

from dataclasses import dataclass

from discovery.checks import at_least
from proxy.admission.limits import QUEUED, Auto, KeyLimits, LoadLimit, NodeLimit

LEAST = 1
LEAST_OF = {"max_queued_requests": 0, "max_queued_per_key": 0, "max_queued_per_node": 0}


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """The limits that operators set. No slots: UpConfig inherits from two dataclasses."""

    max_requests_in_flight: int | None = None
    """Most choices in flight at once; further ones are queued. Default: no limit."""

    max_tokens_in_flight: int | None = None
    """Most tokens in flight at once, of prompts and answers. Default: no limit."""

    max_queued_requests: int = QUEUED
    """Most queued requests; further ones are refused."""

    max_requests_per_key: int | None = None
    """Most choices in flight at once for one API key. Default: no limit."""

    max_tokens_per_key: int | None = None
    """Most tokens in flight at once for one API key. Default: no limit."""

    max_queued_per_key: int | None = None
    """Most queued requests of one API key. Default: --max-queued-requests."""

    requests_per_minute_per_key: int | None = None
    """Most calls of one API key that begin in a minute. Default: no limit."""

    tokens_per_minute_per_key: int | None = None
    """Most tokens of those calls, of prompts and answers. Default: no limit."""

    max_requests_per_node: int | Auto | None = None
    """Most choices of this proxy on one decode node; auto: its seats. Default: no limit."""

    max_tokens_per_node: int | None = None
    """Most tokens that this proxy has in flight on one decode node. Default: no limit."""

    max_queued_per_node: int | None = None
    """Most queued requests for each decode node of a model. Default: --max-queued-requests."""

    max_requests_per_prefill_node: int | None = None
    """Most prompts of this proxy on one prefill node. Default: no limit."""

    max_tokens_per_prefill_node: int | None = None
    """Most prompt tokens of this proxy on one prefill node. Default: no limit."""

    def __post_init__(self) -> None:
        """Refuse what can never work; raises ValueError, naming the flag."""
        for name in LimitOptions.__dataclass_fields__:
            if (value := getattr(self, name)) != "auto":
                at_least(LEAST_OF.get(name, LEAST), name, value)

    @property
    def node_limits(self) -> NodeLimit:
        """The limits of one decode node."""
        return NodeLimit(self.max_requests_per_node, self.max_tokens_per_node)

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
