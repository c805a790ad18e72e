"""Explains a port that is taken: which setting chose it, and which process has it."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zmq import ZMQError

PROC = Path("/proc")
LISTENING = "0A"  # in Linux's tables
LONGEST_COMMAND = 100


class PortTaken(OSError):
    """Another socket listens at this port."""


def passive_address(host: str, port: int, setting: str) -> tuple[int, str]:
    """The family and the address to listen at; raises OSError, with the setting, if a name has
    none or this machine has no such address. Of a name, its IPv4 address if there is one: nodes
    come to 127.0.0.1 unless told.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(f"{setting} {host}: {error.strerror}") from error
    family, *_, address = min(found, key=lambda one: one[0] is not socket.AF_INET)
    try:
        with socket.socket(family) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError as error:
        absent = error.errno == errno.EADDRNOTAVAIL
        why = "this machine has no such address" if absent else error.strerror
        raise OSError(f"{setting} {host}: {why}") from error
    return family, str(address[0])


@contextmanager
def listening_at(port: int, setting: str) -> Iterator[None]:
    """Raises PortTaken in place of an error that says that the address is in use."""
    try:
        yield
    except (OSError, ZMQError) as error:
        if error.errno != errno.EADDRINUSE:
            raise
        by = owner_of(port) or "somebody who cannot be seen from here"
        said = f"port {port} is taken by {by}: choose another one ({setting})"
        raise PortTaken(said) from error


def owner_of(port: int) -> str | None:
    """The process that listens there, and its command; None if Linux does not tell us."""
    inodes = _listening(port)
    for process in PROC.glob("[0-9]*"):
        if inodes and not inodes.isdisjoint(_sockets(process)):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().decode(errors="replace")
                command = " ".join(words.split("\0")).strip()
                return f"process {process.name} ({command[:LONGEST_COMMAND]})"
    return None


def _listening(port: int) -> set[str]:
    """The sockets that listen at this port, at any address."""
    found = set[str]()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{words[9]}]")
    return found


def _sockets(process: Path) -> Iterator[str]:
    """The process's open files; empty if it is gone or belongs to another user."""
    with suppress(OSError):
        for file in (process / "fd").iterdir():
            with suppress(OSError):
                yield str(file.readlink())
