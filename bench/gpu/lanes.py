"""Measures rows in child processes, one after the other.

A row that breaks its process, or hangs, is reported as failed, and the next process begins
after it. When the time is up, the running process is killed.
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
    """The device cannot even copy and multiply; with the reason, if one was reported."""


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
        """How a process ended that reports no more."""
        try:
            code = self.process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return "its process tells nothing any more"
        if code >= 0:
            return f"its process ended with {code}"
        return f"its process ended by {signal.Signals(-code).name}"

    def kill(self) -> None:
        """Kill the process and those that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _listen(self, pipe: int) -> None:
        with os.fdopen(pipe) as lines:
            for line in lines:
                with suppress(ValueError):  # cut off, if it was killed during a report
                    self.news.put(json.loads(line))
        self.news.put(None)


@dataclass(slots=True)
class RowProcesses:
    """Measures all rows in one process after another; each gets `job`.

    `ceilings` and `facts` are set once the first process has measured them.
    """

    entries: Sequence[RowEntry]
    job: dict[str, Any]
    ends_at: float
    row_s: float
    ceilings: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    module: str = "bench.gpu.child"

    def results(self) -> Iterator[Measured]:
        """The rows' results, including rows for which there was no time. Raises NoCeilings."""
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
        """The results of one process, in order, up to the row that ends it.

        If it ends between two rows, because its device was lost, the next row has not failed.
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
        """The report of the next row; raises _ProcessEnded."""
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
    """A process has ended, during the row that it had `begun`, or before any."""

    def __init__(self, why: str, begun: bool) -> None:
        super().__init__(why)
        self.begun = begun
