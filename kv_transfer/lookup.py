"""Looks up a host's addresses: a literal address at once, a name in a separate thread."""

import os
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Found = list[tuple[Any, ...]]
"""What getaddrinfo returns, in the order in which to try."""


@dataclass(slots=True)
class Lookup:
    """One lookup; the caller goes on meanwhile, since a name server may take seconds or
    forever.

    `fileno` is readable once the lookup is over.
    """

    _found: "Future[Found]" = field(default_factory=Future)
    _over: int | None = None

    @classmethod
    def of(cls, host: str, port: int) -> "Lookup":
        """Begin a lookup; a literal address needs no thread. Raises OSError if a name cannot
        have one.
        """
        with suppress(socket.gaierror, UnicodeError):
            return cls.known(addresses(host, port, socket.AI_NUMERICHOST))
        over, announces = os.pipe()
        lookup = cls(_over=over)
        work = threading.Thread(
            target=_work,
            args=(host, port, lookup._found, announces),
            name="lookup",
            daemon=True,
        )
        try:
            work.start()
        except RuntimeError as error:  # the system has no thread left for this process
            lookup.close()
            os.close(announces)
            raise OSError(f"{host}: {error}") from error
        return lookup

    @classmethod
    def known(cls, found: Found) -> "Lookup":
        """A lookup that is already over."""
        lookup = cls()
        lookup._found.set_result(found)
        return lookup

    def fileno(self) -> int | None:
        """The file descriptor to wait for; None if there is nothing to wait for."""
        return self._over

    def found(self) -> Found:
        """The addresses; empty while not known. Raises OSError if the host is not found."""
        if not self._found.done():
            return []
        self.close()
        return self._found.result()

    def close(self) -> None:
        """The result is no longer wanted; idempotent."""
        if self._over is not None:
            os.close(self._over)
            self._over = None


def addresses(host: str, port: int, flags: int = 0) -> Found:
    """Resolve a host; raises gaierror, or UnicodeError for an invalid name. May never
    return.
    """
    return list(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, flags))


def _work(host: str, port: int, future: "Future[Found]", announces: int) -> None:
    try:
        future.set_result(addresses(host, port))
    except (OSError, UnicodeError) as error:
        future.set_exception(OSError(f"{host}: {error}"))
    finally:
        os.close(announces)
