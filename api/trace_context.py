"""W3C Trace Context: whose trace a call belongs to. Pure; https://www.w3.org/TR/trace-context/.

As the standard asks, a malformed header counts as absent: a new trace begins here.
"""

import re
from collections.abc import Sequence

import msgspec

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
PARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
)
NO_VERSION, FIRST_VERSION = "ff", "00"
MOST_MEMBERS, LONGEST_STATE = 32, 512
SAMPLED = 1


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """A place in a trace: 32 and 16 hexadecimal digits, flags of 8 bits, others' state."""

    trace_id: str
    span_id: str
    flags: int = 0
    state: str = ""

    @property
    def sampled(self) -> bool:
        """Whether the caller records this call."""
        return bool(self.flags & SAMPLED)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a call at this place of the trace."""
        parent = f"{FIRST_VERSION}-{self.trace_id}-{self.span_id}-{self.flags:02x}"
        if not self.state:
            return {TRACEPARENT: parent}
        return {TRACEPARENT: parent, TRACESTATE: self.state}


def read_trace(parents: Sequence[str], states: Sequence[str]) -> TraceContext | None:
    """Read the context from headers of these two names; None if there is no valid one.

    A later version of the standard is read as far as this one goes.
    """
    found = PARENT.fullmatch(parents[0].strip()) if len(parents) == 1 else None
    if found is None or found["version"] == NO_VERSION:
        return None
    if found["more"] is not None and found["version"] == FIRST_VERSION:
        return None
    if not (int(found["trace"], 16) and int(found["span"], 16)):
        return None
    return TraceContext(found["trace"], found["span"], int(found["flags"], 16), _state(states))


def _state(given: Sequence[str]) -> str:
    """The state's members in their order, or nothing if one of them is invalid."""
    members = [one.strip() for one in ",".join(given).split(",") if one.strip()]
    state = ",".join(members)
    sound = all(MEMBER.fullmatch(one) for one in members)
    return (
        state if sound and len(members) <= MOST_MEMBERS and len(state) <= LONGEST_STATE else ""
    )
