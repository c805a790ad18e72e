"""`python -m tests.machines.hosts`: hosts that are gone, that sleep, and that are well.

Exits with 1 where the kernel's word for them is not what `api/door/tcp_info.py` makes of it.
"""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

from api.door.tcp_info import unacknowledged_s
from tests.fakes.waiting import is_seen
from tests.machines.lan import HERE, Lan, Machine, go_inside, lan

ADDRESS = "10.77.0.9"
DEAF = "import socket, sys; s = socket.create_connection(({!r}, {})); sys.stdin.read()"
GONE_S, LONG_S, SOON_S = 1.5, 5.0, 20.0
PIECE = b"x" * (1 << 20)


async def main() -> None:
    """One guest who reads nothing: acknowledged as long as its cable is in."""
    async with lan() as net:
        machine = await net.start(ADDRESS)
        for fill in (False, True):
            await _look(net, machine, fill=fill)
            await net.plug(machine)


async def _look(net: Lan, machine: Machine, *, fill: bool) -> None:
    with socket.create_server((HERE, 0)) as server:
        code = DEAF.format(*server.getsockname())
        command = machine.command(sys.executable, "-c", code)
        guest = await asyncio.create_subprocess_exec(*command, stdin=PIPE)
        wire, _ = await asyncio.to_thread(server.accept)
        with wire:
            wire.setblocking(False)
            try:
                await _watch(net, machine, wire, guest, fill=fill)
            finally:
                guest.kill()
                await guest.wait()


async def _watch(
    net: Lan, machine: Machine, wire: socket.socket, guest: Process, *, fill: bool
) -> None:
    """With `fill` it has no room, and the kernel asks now and then whether it has."""

    async def is_heard() -> bool:
        return unacknowledged_s(wire) == 0.0

    async def is_gone() -> bool:
        return unacknowledged_s(wire) >= GONE_S

    os.kill(guest.pid, signal.SIGSTOP)
    wire.send(b"x")
    with suppress(BlockingIOError):
        while fill:
            wire.send(PIECE)
    if not await is_seen(is_heard, SOON_S):
        sys.exit("its host acknowledges, though it sleeps, and that is not seen")
    if await is_seen(is_gone, LONG_S):
        sys.exit("it sleeps, and its host is taken for gone")
    await net.unplug(machine)
    with suppress(BlockingIOError):
        wire.send(b"x")
    if not await is_seen(is_gone, SOON_S):
        sys.exit("its host is gone, and that is not seen")


if __name__ == "__main__":
    go_inside("tests.machines.hosts")
    asyncio.run(main())
