"""A machine with one process of pdserve on it, which goes with the machine."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cpu import children
from deploy.supervisor import SupervisedProcess
from tests.e2e.cluster import MODEL
from tests.machines.lan import Lan, Machine

STOP_S, READY_S = 5.0, 180.0
NETWORK_ONLY = {"UCX_TLS": "tcp"}  # it would find that all machines have one memory
OPTIONS = (
    *("--host", "0.0.0.0", "--dtype", "float32", "--threads", "1", "--device", "cpu"),
    *("--kv-checksum", "full", "--drain-timeout-s", "2"),
)
Show = Callable[[str, str], None]


@dataclass(slots=True)
class Box:
    """`words` are the module and its arguments; nothing in them says where others find it."""

    name: str
    address: str
    words: Sequence[str]
    lan: Lan
    show: Show
    machine: Machine = field(init=False)
    _child: SupervisedProcess = field(init=False)
    _running: "asyncio.Task[None]" = field(init=False)

    async def power_on(self) -> None:
        """Its process is ready."""
        self.machine = await self.lan.start(self.address)
        command = self.machine.command(sys.executable, "-m", *self.words)
        variables = os.environ | NETWORK_ONLY
        self._child = SupervisedProcess(
            self.name, lambda: command, variables, self.show, STOP_S
        )
        self._running = asyncio.create_task(self._child.run())
        async with asyncio.timeout(READY_S):
            either: list[asyncio.Future[Any]] = [self._running, self._child.ready]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._running.done():
            await self._running

    async def power_off(self) -> None:
        """Nobody hears of it."""
        await self.lan.unplug(self.machine)
        process = self._child.process
        assert process is not None
        pids = [process.pid, *children(process.pid)]
        self._child.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._running
        await self.lan.power_off(self.machine)


def proxy_box(folder: Path, lan: Lan, show: Show, address: str) -> Box:
    """Clients at port 8000, nodes at 30001."""
    names = ("--model", str(folder), "--served-model-name", MODEL)
    everybody = ("--host", "0.0.0.0", "--discovery-host", "0.0.0.0")
    return Box("proxy", address, ["proxy", *names, *everybody], lan, show)


def node_box(
    role: str, folder: Path, lan: Lan, show: Show, address: str, proxy: str, connector: str
) -> Box:
    """Ports are those of the role, the same on every machine."""
    names = ("--model", str(folder), "--served-model-name", MODEL)
    where = ("--proxy", f"{proxy}:30001", "--kv-connector", connector)
    words = [f"{role}_node", *names, *where, *OPTIONS]
    return Box(f"{role}-{address.rpartition('.')[2]}", address, words, lan, show)
