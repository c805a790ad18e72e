"""Supervises processes on this machine: start, readiness, log lines, restart and stop.

Each process has a socket to the supervisor. It sends a line when it is ready, and more when
something changes, and ends when the socket is closed, so that no process outlives the
supervisor however that dies. Processes are stopped by the handle they were started with, never
by name.
"""

import asyncio
import json
import logging
import signal
import socket
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
PROVEN_S = 60.0  # after running this long the next restart is quick again
LONGEST_LINE = 1 << 20
ADDRESS = "http_address"
LEFT_OUT = b"(a line that was too long to show)\n"
log = logging.getLogger(__name__)
Facts = Mapping[str, str]


class ProcessFailed(RuntimeError):
    """A process ended before it was ever ready; the text has its last line, which says why."""


@dataclass(slots=True, eq=False)
class SupervisedProcess:
    """One process to be kept running; `arguments` is called before each start.

    `ready` is resolved with the facts that it reported when first ready; `latest` has all facts
    reported since the last start.
    """

    name: str
    arguments: Callable[[], Sequence[str]]
    environment: Mapping[str, str]
    show: Callable[[str, str], None]
    stop_timeout_s: float
    ready: "asyncio.Future[Facts]" = field(default_factory=lambda: asyncio.Future())
    process: Process | None = None
    latest: dict[str, str] = field(default_factory=dict)
    last_line: str = ""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Keep it running until `stop`; raises ProcessFailed if it never gets ready."""
        pause, clock = FIRST_PAUSE_S, asyncio.get_running_loop().time
        while not self.stopping.is_set():
            since = clock()
            ended = await self._run_once()
            if self.stopping.is_set():
                return
            if not self._was_ready:
                why = f": {self.last_line}" if self.last_line else ""
                raise ProcessFailed(f"{self.name} {ended}{why}")
            pause = FIRST_PAUSE_S if clock() - since > PROVEN_S else pause
            log.warning("%s %s, again in %.1f s", self.name, ended, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    @property
    def facts(self) -> Facts | None:
        """What it reported when it became ready, if it has."""
        return self.ready.result() if self._was_ready else None

    @property
    def _was_ready(self) -> bool:
        """Who waited for it may have given up, and so have cancelled `ready`."""
        return self.ready.done() and not self.ready.cancelled()

    def kill(self) -> None:
        """Kill it at once."""
        self.stopping.set()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()

    def reread(self) -> None:
        """Have it reload its files; one that was never ready has just read them."""
        running = self.process is not None and self.process.returncode is None
        if self.process is not None and running and self._was_ready:
            self.process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Ask it to end and wait; kill it after the timeout."""
        self.stopping.set()
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), self.stop_timeout_s)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def _run_once(self) -> str:
        """How it ended, or why it could not be started, which may be so for a while only."""
        try:
            ours = await self._start()
        except OSError as error:
            return f"cannot be started: {error}"
        assert self.process is not None
        with ours:
            if self.stopping.is_set():
                self.process.kill()  # `stop` came while there was no process yet
            listening = asyncio.create_task(self._listen(ours))
            try:
                await self._relay(self.process)
                return f"ended with status {await self.process.wait()}"
            finally:
                listening.cancel()

    async def _start(self) -> socket.socket:
        """Start the process; returns our end of its socket."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = await asyncio.create_subprocess_exec(
                    *self.arguments(),
                    "--supervisor-fd",
                    str(theirs.fileno()),
                    stdout=PIPE,
                    stderr=STDOUT,
                    env=self.environment,
                    limit=LONGEST_LINE,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # a Ctrl-C is passed on by us
                )
            except BaseException:
                ours.close()
                raise
        return ours

    async def _relay(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await _line_of(process.stdout):
            self.last_line = line.decode(errors="replace").rstrip()
            self.show(self.name, self.last_line)

    async def _listen(self, ours: socket.socket) -> None:
        """Read its lines: the first says where it listens, and so that it is ready."""
        ours.setblocking(False)
        self.latest.clear()
        loop, begun = asyncio.get_running_loop(), b""
        while said := await loop.sock_recv(ours, LONGEST_LINE):
            *lines, begun = (begun + said).split(b"\n")
            for line in lines:
                self.latest |= json.loads(line)
                if ADDRESS in self.latest and not self.ready.done():
                    self.ready.set_result(dict(self.latest))


async def _line_of(stdout: asyncio.StreamReader) -> bytes:
    """The next line; empty at the end."""
    try:
        return await stdout.readline()
    except ValueError:  # longer than the limit, and dropped
        return LEFT_OUT
