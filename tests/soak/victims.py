"""A node that is there to be hurt: killed, stopped, started anew."""

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
from deploy.supervisor import ProcessFailed, SupervisedProcess
from tests.e2e.cluster import MODEL
from tests.soak.wires import FRONT

STOP_S = 5.0
PAUSE_S = 0.5
READY_S = 180.0


@dataclass(slots=True)
class Victim:
    """One node; `run` starts it again whenever it has ended.

    By default it is behind the wires.
    """

    name: str
    role: str
    folder: Path
    discovery: str
    show: Callable[[str, str], None]
    options: Sequence[str]
    advertise: str = FRONT
    starts: int = 0
    stopped: set[int] = field(default_factory=set)
    child: SupervisedProcess | None = None

    async def run(self) -> None:
        """Until cancelled, which ends it."""
        try:
            while True:
                self.child = self._child()
                self.starts += 1
                with suppress(ProcessFailed):  # it was killed before it was ready
                    await _once(self.child)
                await asyncio.sleep(PAUSE_S)
        finally:
            self.go_on()

    @property
    def is_ready(self) -> bool:
        """Whether there is something to hurt."""
        return self.child is not None and self.child.ready.done() and len(self.pids()) > 1

    def pids(self) -> list[int]:
        """The door, then its engine, then that one's other ranks; none if it does not run."""
        process = self.child.process if self.child else None
        if process is None or process.returncode is not None:
            return []
        with suppress(OSError):
            engines = list(children(process.pid))
            ranks = [rank for engine in engines for rank in children(engine)]
            return [process.pid, *engines, *ranks]
        return []

    def kill(self, number: int) -> None:
        """kill -9 of the door (0), the engine (1) or another rank (2, ..)."""
        for pid in self.pids()[number : number + 1]:
            os.kill(pid, signal.SIGKILL)

    def restart(self) -> None:
        """As an operator does: it drains, and comes again."""
        for pid in self.pids()[:1]:
            os.kill(pid, signal.SIGTERM)

    def stop(self, number: int) -> None:
        """SIGSTOP: it is there and does nothing."""
        for pid in self.pids()[number : number + 1]:
            os.kill(pid, signal.SIGSTOP)
            self.stopped.add(pid)

    def go_on(self) -> None:
        """Whatever was stopped goes on."""
        while self.stopped:
            with suppress(ProcessLookupError):
                os.kill(self.stopped.pop(), signal.SIGCONT)

    def _child(self) -> SupervisedProcess:
        def arguments() -> list[str]:
            return [
                *(sys.executable, "-m", f"{self.role}_node", "--model", str(self.folder)),
                *("--served-model-name", MODEL, "--proxy", self.discovery),
                *("--port", "0", "--kv-port", "0", "--advertise-host", self.advertise),
                *self.options,
            ]

        return SupervisedProcess(self.name, arguments, os.environ, self.show, STOP_S)


async def _once(child: SupervisedProcess) -> None:
    """Run it to its end, and no second time."""
    running = asyncio.create_task(child.run())
    try:
        either: list[asyncio.Future[Any]] = [running, child.ready]
        await asyncio.wait(either, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        child.stopping.set()
        await running
    finally:
        child.kill()
        await asyncio.gather(running, return_exceptions=True)
