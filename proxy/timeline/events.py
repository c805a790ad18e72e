"""The events of a choice's timeline; `at` is a time in seconds of the proxy's clock.

Plain data without references to the cluster, since timelines are kept after nodes are gone.
`node` is the address of a node.
"""

from typing import Literal

import msgspec

LegKind = Literal["prefill", "decode", "whole"]


class AttemptPlanned(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="planned"):
    """An attempt begins with these nodes; without `prefill`, decode runs the prompt as well.

    `why` is one of `proxy/routing/plan.py:PlanReason`; `predicted` are seconds from `at` to the
    first token, and to the last.
    """

    at: float
    prefill: str | None
    decode: str
    why: str = ""
    predicted: tuple[float, float] | None = None


class LegOpened(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="called"):
    """A leg was opened. `span_id`: the span of this call, if requests are traced."""

    at: float
    node: str
    kind: LegKind
    span_id: str = ""


class TicketReceived(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ticket"):
    """The prefill node's ticket arrived: its KV can be fetched."""

    at: float
    node: str


class StageEnded(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="stage"):
    """A node reported the end of a stage; `node_s` is the `at_s` of its StageEvent."""

    at: float
    node: str
    stage: str
    seconds: float
    num_bytes: int = 0
    node_s: float | None = None


class PromptAccepted(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="prompt"):
    """A node accepted the prompt, with this many tokens cached there or fetched for it."""

    at: float
    node: str
    cached_tokens: int
    fetched_tokens: int = 0


class LegFailed(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="failed"):
    """A leg broke off, or its node reported a failure."""

    at: float
    node: str
    reason: str


class RetryDecided(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="retry"):
    """The attempt or its decode leg is given up; `node` is to blame, None if no node is.

    `cause` is one of `proxy/errors.py:Cause`.
    """

    at: float
    node: str | None
    cause: str
    reason: str


class LegEnded(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ended"):
    """A prefill leg ended: its KV was fetched (`taken`), or the proxy closed it."""

    at: float
    node: str
    taken: bool = True


TimelineEvent = (
    AttemptPlanned
    | LegOpened
    | TicketReceived
    | StageEnded
    | PromptAccepted
    | LegFailed
    | RetryDecided
    | LegEnded
)
