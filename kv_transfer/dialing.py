"""Connects to a host name that resolves to several addresses, which are tried in turn.

A host with an address of each family may listen on only one of them, or one of its networks may
be unreachable from here. Nothing here blocks: the calling thread has other work.
"""

import errno
import select
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kv_transfer.accepting import prepare
from kv_transfer.lookup import Lookup

ATTEMPT_S = 0.25  # for an address that does not answer while another is left: as RFC 8305
UNDER_WAY = {0, errno.EINPROGRESS, errno.EWOULDBLOCK}


@dataclass(slots=True)
class Dialer:
    """Connects to one of a host's addresses, in the order in which they were found."""

    lookup: Lookup
    _untried: deque[tuple[Any, ...]] = field(default_factory=deque)
    _attempt: socket.socket | None = None
    _since: float = 0.0  # when the attempt began

    @property
    def interest(self) -> tuple[int | None, int]:
        """The file descriptor to poll, and the event that says `connect` can make progress."""
        if self._attempt is None:
            return self.lookup.fileno(), select.POLLIN
        return self._attempt.fileno(), select.POLLOUT

    def connect(self, now: float) -> socket.socket | None:
        """A connection, which the caller then owns; None: not yet.

        Call it repeatedly until it returns one. Raises OSError, of the last address or of the
        name lookup, if no connection can be made.
        """
        if self._attempt is None:
            self._untried += self.lookup.found()
        while self._attempt is not None or self._untried:
            try:
                if self._attempt is None:
                    self._begin(now)
                if self._is_connected(now):
                    connection, self._attempt = self._attempt, None
                    return connection
            except OSError:
                self._hang_up()
                if not self._untried:
                    raise
            else:
                return None
        return None

    def close(self) -> None:
        """Give up, at any stage."""
        self.lookup.close()
        self._hang_up()

    def _begin(self, now: float) -> None:
        family, _, _, _, place = self._untried.popleft()
        self._attempt, self._since = socket.socket(family, socket.SOCK_STREAM), now
        prepare(self._attempt)
        _raise_for(self._attempt.connect_ex(place))

    def _is_connected(self, now: float) -> bool:
        """Whether the attempt succeeded; raises OSError if it failed or took too long."""
        assert self._attempt is not None
        poller = select.poll()
        poller.register(self._attempt, select.POLLOUT)
        if poller.poll(0):
            _raise_for(self._attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            return True
        if self._untried and now - self._since >= ATTEMPT_S:
            _raise_for(errno.ETIMEDOUT)
        return False

    def _hang_up(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None


def _raise_for(code: int) -> None:
    if code not in UNDER_WAY:
        raise OSError(code, errno.errorcode.get(code, "unknown"))
