"""Ties a process to the one that started it: when the starter ends, so does this process.

The starter holds a pipe or socket open. However it dies, the kernel closes its end, and the
read of the lifeline thread returns.
"""

import ctypes
import json
import logging
import os
import signal
import socket
import threading
from contextlib import suppress

ORPHANED = 3  # exit status
PR_SET_PDEATHSIG = 1  # see prctl(2)
LONGEST_LINE = 1 << 20
log = logging.getLogger(__name__)


def end_with(fd: int, last_words: str | None = None) -> None:
    """End this process when the other end of `fd` is closed; logs `last_words` first."""
    told = fd, last_words
    threading.Thread(target=_watch, args=told, name="lifeline", daemon=True).start()


def end_with_supervisor(fd: int) -> None:
    """End this process with its launcher, which has the other end of the socket `fd`.

    Raises SystemExit if that is no open socket: nobody would hear what is reported there.
    """
    try:
        with socket.socket(fileno=os.dup(fd)):
            pass
    except OSError as error:
        told = f"--supervisor-fd {fd} is no open socket: {error.strerror}"
        raise SystemExit(told) from error
    end_with(fd)


def die_with_parent() -> None:
    """Have the kernel kill this process with its parent, even while it is stopped (Linux).

    A stopped process does not read its lifeline. What counts is the end of the parent's thread
    that started it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def first_line(fd: int) -> bytes:
    """The starter's first line, read unbuffered: the lifeline thread reads the rest.

    Raises SystemExit at the end of the file.
    """
    line = b""
    while not line.endswith(b"\n"):
        if not (part := os.read(fd, LONGEST_LINE)):
            raise SystemExit("no job on standard input: this process is started by a node")
        line += part
    return line


def _watch(fd: int, last_words: str | None) -> None:
    while True:
        try:
            said = os.read(fd, 1)
        except OSError:  # reset by a peer that was killed
            said = b""
        if not said:
            if last_words is not None:
                log.error("%s: so this process ends", last_words)
            os._exit(ORPHANED)


def report_to_starter(fd: int, **facts: str) -> None:
    """Send the starter one line of JSON: first that this process is ready and where, later
    news.

    Never blocks: a line that does not fit into the socket's buffer is lost.
    """
    line = json.dumps(facts).encode() + b"\n"
    with socket.socket(fileno=os.dup(fd)) as starter, suppress(OSError):
        starter.send(line, socket.MSG_DONTWAIT)
