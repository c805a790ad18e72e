"""How a call to a node may end but by its reply.

NoConnection   there is nobody, or not in time
Silent         a TimeoutError: nothing came for as long as was agreed
HungUp         the connection was lost before the reply was whole
Gone           a HungUp: the other host acknowledges nothing any more
Unreadable     what came is not HTTP
"""


class NoConnection(ConnectionError):
    """`os_error` says why; None: it took too long."""

    def __init__(self, os_error: OSError | None) -> None:
        super().__init__(f"no connection: {os_error}" if os_error else "no connection in time")
        self.os_error = os_error


class Silent(TimeoutError):
    """Nothing came for as long as was agreed."""


class HungUp(ConnectionError):
    """The connection was lost before the reply was whole."""


class Gone(HungUp):
    """The other host acknowledges nothing any more: another connection would not help."""


class Unreadable(ConnectionError):
    """What came is not HTTP."""
