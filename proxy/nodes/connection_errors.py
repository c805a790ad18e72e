"""How a call to a node may end without a complete reply.

NoConnection       the connection was refused, or took too long
SilenceTimeout     a TimeoutError: no progress within the call's ReplyTimeouts (patience.py)
ConnectionClosed   the connection was lost before the reply was complete
HostGone           a ConnectionClosed: the other host no longer acknowledges anything
MalformedReply     the reply is not HTTP
"""


class NoConnection(ConnectionError):
    """`os_error` is the reason; None: it took too long."""

    def __init__(self, os_error: OSError | None) -> None:
        super().__init__(f"no connection: {os_error}" if os_error else "no connection in time")
        self.os_error = os_error


class SilenceTimeout(TimeoutError):
    """The reply made no progress within the call's ReplyTimeouts."""


class ConnectionClosed(ConnectionError):
    """The connection was lost before the reply was complete."""


class HostGone(ConnectionClosed):
    """The other host no longer acknowledges anything: another connection would not help."""


class MalformedReply(ConnectionError):
    """The reply is not HTTP."""
