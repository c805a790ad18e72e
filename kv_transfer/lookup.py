"""Where a host is: known at once of an address, looked up by a thread of its own of a name."""

import os
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Found = list[tuple[Any, ...]]
"""What getaddrinfo answers, the first to be tried first."""


@dataclass(slots=True)
class Lookup:
    """A name server may take seconds, or for ever: who wants to know goes on meanwhile.

    `fileno` is readable once it is over.
    """

    _found: "Future[Found]" = field(default_factory=Future)
    _over: int | None = None

    @classmethod
    def of(cls, host: str, port: int) -> "Lookup":
        """Begin; an address needs no thread."""
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
        work.start()
        return lookup

    @classmethod
    def known(cls, found: Found) -> "Lookup":
        """One that is over."""
        lookup = cls()
        lookup._found.set_result(found)
        return lookup

    def fileno(self) -> int | None:
        """None where there is nothing to wait for."""
        return self._over

    def found(self) -> Found:
        """Empty: not known yet. Raises OSError where there is no such host."""
        if not self._found.done():
            return []
        self.close()
        return self._found.result()

    def close(self) -> None:
        """Nobody waits any more; idempotent."""
        if self._over is not None:
            os.close(self._over)
            self._over = None


def addresses(host: str, port: int, flags: int = 0) -> Found:
    """Raises gaierror, UnicodeError for what can be no name; may take for ever."""
    return list(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, flags))


def _work(host: str, port: int, future: "Future[Found]", announces: int) -> None:
    try:
        future.set_result(addresses(host, port))
    except (OSError, UnicodeError) as error:
        future.set_exception(OSError(f"{host}: {error}"))
    finally:
        os.close(announces)
