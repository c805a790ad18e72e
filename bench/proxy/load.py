"""The load generator: plain sockets, and as little parsing as possible.

Reads one job from standard input, says what came of it on standard output. A token's text
begins with a space and has no other, an event has one behind `data:`, and JSON has none: so
tokens are counted without reading them. Lines end with CR LF in the framing of chunks only.
"""

import asyncio
import os
import random
import sys
import time
from dataclasses import dataclass, field
from typing import cast

import msgspec
import uvloop

from bench.proxy.answers import LoadJob, LoadResult

END = b"0\r\n\r\n"
OPEN_S = 0.02  # between the first requests of two streams, at most
MOST_OPENING_S = 3.0
LENGTH = "@length@"


class WrongAnswer(RuntimeError):
    """Nothing was measured."""


@dataclass(slots=True)
class Tally:
    """Counts while `open`."""

    open: bool = False
    firsts: list[float] = field(default_factory=list)
    started: int = 0
    ended: int = 0
    spaces: int = 0
    newlines: int = 0
    returns: int = 0
    reads: int = 0

    @property
    def events(self) -> int:
        """Each ends with two newlines of its own."""
        return (self.newlines - self.returns) // 2


class Client(asyncio.Protocol):
    """One stream after another on one connection."""

    def __init__(self, job: LoadJob, tally: Tally, failed: "asyncio.Future[None]") -> None:
        self.job, self.tally, self.failed = job, tally, failed
        self.since, self.waiting, self.counted, self.tail = 0.0, False, False, b""
        self.wanted = self.spaces = self.newlines = self.returns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol: nobody else may end it."""
        if not self.failed.done():
            self.failed.set_exception(WrongAnswer(f"a connection was lost: {error}"))

    def ask(self, length: int) -> None:
        """Send one request."""
        body = self.job.body.replace(LENGTH, str(length)).encode()
        head = (
            f"POST {self.job.path} HTTP/1.1\r\nHost: {self.job.address}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.wanted, self.spaces, self.newlines, self.returns = length, 0, 0, 0
        self.waiting, self.counted = True, self.tally.open
        self.tally.started += self.tally.open
        self.since = time.perf_counter()
        self.transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.waiting:
            if data.startswith(b"HTTP"):
                if not data.startswith(b"HTTP/1.1 200") and not self.failed.done():
                    self.failed.set_exception(WrongAnswer(data.decode(errors="replace")))
                data = data.partition(b"\r\n\r\n")[2]
            if not data:
                return
            self._first()
        spaces, newlines, returns = data.count(b" "), data.count(b"\n"), data.count(b"\r")
        self.spaces, self.newlines = self.spaces + spaces, self.newlines + newlines
        self.returns += returns
        if self.tally.open:
            self.tally.reads += 1
            self.tally.spaces += spaces
            self.tally.newlines += newlines
            self.tally.returns += returns
        self.tail = (self.tail + data)[-len(END) :]
        if self.tail == END:
            self._end()

    def _first(self) -> None:
        self.waiting = False
        if self.counted:
            self.tally.firsts.append(time.perf_counter() - self.since)

    def _end(self) -> None:
        tokens = self.spaces - (self.newlines - self.returns) // 2
        if self.job.spaces and tokens != self.wanted and not self.failed.done():
            self.failed.set_exception(WrongAnswer(f"{tokens} tokens, not {self.wanted}"))
        self.tally.ended += self.tally.open
        self.tail = b""
        pause_s = random.uniform(0, self.job.pause_s)
        asyncio.get_running_loop().call_later(pause_s, self.ask, self.job.lengths[-1])


def cpu_clock(pid: int) -> int:
    """The clock of what a process computes, with all its threads: clock_getcpuclockid(3)."""
    return ((~pid) << 3) | 2


async def run(job: LoadJob) -> LoadResult:
    """Raises WrongAnswer, or OSError."""
    loop, tally = asyncio.get_running_loop(), Tally()
    failed: asyncio.Future[None] = loop.create_future()
    host, _, port = job.address.rpartition(":")
    pause = min(OPEN_S, MOST_OPENING_S / job.streams)
    for number in range(job.streams):
        _, client = await loop.create_connection(
            lambda: Client(job, tally, failed), host, int(port)
        )
        client.ask(job.lengths[number % len(job.lengths)])
        await asyncio.sleep(pause)
    await asyncio.wait([failed], timeout=job.settle_s)
    before, tally.open, since = _spent(job), True, time.perf_counter()
    await asyncio.wait([failed], timeout=job.window_s)
    after, tally.open, seconds = _spent(job), False, time.perf_counter() - since
    if failed.done():
        failed.result()
    failed.cancel()
    spent = [late - early for early, late in zip(before, after, strict=True)]
    return LoadResult(
        firsts=tally.firsts,
        started=tally.started,
        ended=tally.ended,
        events=tally.events,
        tokens=tally.spaces - tally.events,
        reads=tally.reads,
        seconds=seconds,
        cpu_s=dict(zip(map(str, job.pids), spent, strict=False)),
        own_cpu_s=spent[-1],
    )


def _spent(job: LoadJob) -> list[float]:
    return [time.clock_gettime(cpu_clock(pid)) for pid in (*job.pids, os.getpid())]


def main() -> None:
    """One job."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadJob)
    done = uvloop.run(run(job))
    sys.stdout.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
