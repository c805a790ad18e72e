"""Measures rows in child processes, one after the other.

A row that breaks its process, or never comes back, is told as failed, and the next process
begins behind it. When the time is up the one that runs is killed, whatever it does.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bench.gpu.measuring import Measured
from bench.gpu.order import RowEntry, lane_end

STARTING_S = 120.0  # to import everything, and to measure ceilings
ENDING_S = 10.0
TRIES = 2
STDERR = 2
LATE, NO_TIME = "no answer within {:.0f} s", "no time left"


class NoCeilings(Exception):
    """The device does not even copy and multiply; why, if it was said."""


@dataclass(slots=True)
class RowProcess:
    """A process that measures rows, and the queue of its reports."""

    process: "subprocess.Popen[bytes]"
    news: "queue.SimpleQueue[dict[str, Any] | None]"

    @classmethod
    def start(cls, job: dict[str, Any], module: str = "bench.gpu.child") -> "RowProcess":
        """Start it; its output goes to our standard error."""
        ours, theirs = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(job), str(theirs)],
            pass_fds=[theirs],
            stdout=STDERR,
            process_group=0,
        )
        os.close(theirs)
        child = cls(process, queue.SimpleQueue())
        threading.Thread(target=child._listen, args=(ours,), daemon=True).start()
        return child

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """Its next report; None: it has ended. Raises queue.Empty after `seconds`."""
        return self.news.get(timeout=max(0.0, seconds))

    def ending(self) -> str:
        """Of one that tells no more: how it ended."""
        try:
            code = self.process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return "its process tells nothing any more"
        if code >= 0:
            return f"its process ended with {code}"
        return f"its process ended by {signal.Signals(-code).name}"

    def kill(self) -> None:
        """What is left of it, and of those it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _listen(self, pipe: int) -> None:
        with os.fdopen(pipe) as lines:
            for line in lines:
                with suppress(ValueError):  # the end of one that was killed while it told
                    self.news.put(json.loads(line))
        self.news.put(None)


@dataclass(slots=True)
class RowProcesses:
    """Measures all rows, by one process after another; each is sent `job`.

    `ceilings` and `facts` are there once the first process has measured.
    """

    entries: Sequence[RowEntry]
    job: dict[str, Any]
    ends_at: float
    row_s: float
    ceilings: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    module: str = "bench.gpu.child"

    def results(self) -> Iterator[Measured]:
        """Row by row, also those that there was no time for. Raises NoCeilings."""
        index, failures = 0, 0
        while index < len(self.entries):
            if time.monotonic() >= self.ends_at:
                yield self.entries[index].failed(NO_TIME)
                index += 1
                continue
            for one in self._lane(index):
                yield one
                index += 1
            failures += self.ceilings is None
            if failures == TRIES:
                raise NoCeilings

    def _lane(self, first: int) -> Iterator[Measured]:
        """What one process comes to, in order, up to the row that ends it.

        One that ends between two rows, as its device was lost, has nothing against the next.
        """
        end = lane_end(self.entries, first, one_process=self.job["device"] == "cpu")
        told = {"first": first, "end": end, "ceilings": self.ceilings}
        child = RowProcess.start(self.job | told, self.module)
        try:
            for index in range(first, end):
                if isinstance(self.entries[index].row, Measured):
                    yield self.entries[index].failed("")
                    continue
                try:
                    yield self._next(child)
                except _ProcessEnded as ended:
                    guilty = ended.begun or index == first
                    if guilty and self.ceilings is not None:
                        yield self.entries[index].failed(str(ended))
                    return
            child.ending()  # by itself: it may have files to remove
        finally:
            child.kill()

    def _next(self, child: RowProcess) -> Measured:
        """What is told of the row that is next; raises _ProcessEnded."""
        begun, until = False, time.monotonic() + STARTING_S + self.row_s
        while True:
            left = min(until, self.ends_at) - time.monotonic()
            try:
                news = child.hear(left)
            except queue.Empty:
                late = time.monotonic() < self.ends_at
                raise _ProcessEnded(
                    LATE.format(self.row_s) if late else NO_TIME, True
                ) from None
            if news is None:
                raise _ProcessEnded(child.ending(), begun)
            if "measured" in news:
                return Measured(**news["measured"])
            if "ceilings" in news:
                self.ceilings, self.facts = news["ceilings"], news["facts"]
            else:
                begun, until = True, time.monotonic() + self.row_s


class _ProcessEnded(Exception):
    """A process, with the row that it had `begun`, or before it had."""

    def __init__(self, why: str, begun: bool) -> None:
        super().__init__(why)
        self.begun = begun
