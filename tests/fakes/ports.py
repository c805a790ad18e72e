"""Ports for processes that are told theirs before they start."""

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

HERE = "127.0.0.1"
LOWEST, HIGHEST = 10_000, 65_535
PICKED = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Nobody listens there, and the system picks none of them: whoever starts before, and asks
    for any port, gets another.
    """
    first, last = map(int, PICKED.read_text().split())
    others = [*range(LOWEST, first), *range(last + 1, HIGHEST + 1)]
    found = list[int]()
    with ExitStack() as stack:
        for port in random.sample(others, len(others)):
            if len(found) == count:
                break
            with suppress(OSError):
                stack.enter_context(socket.create_server((HERE, port)))
                found.append(port)
    assert len(found) == count
    return found
