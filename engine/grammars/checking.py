"""Checks within a deadline whether a grammar can be served. Torch-free.

llguidance bounds most of its work, but not all of it, and none of it can be interrupted. So
the check runs in a process of its own, which is ended when it takes too long: nothing that a
client sends can hang or kill the door.
"""

import asyncio
import math
import os
import select
import signal
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import PIPE, Popen
from time import clock_gettime, monotonic
from types import TracebackType

import msgspec

from engine.errors import GrammarCheckBusy, GrammarRefused
from engine.request import LONGEST_SOURCE, Grammar

DEADLINE_S = 0.8
CROWDED_S = 0.4  # what is enough for nearly all grammars, where others wait
PATIENCE = 4  # times as long may pass where the machine has other things to do
SCHEDULED = 2  # Linux's number for the time that a process had a processor
START_S = 10.0  # a new process on a busy machine
REMEMBERED = 256  # of those that can be served, and of the others
EXAMINER = "engine.grammars.examining"
GOOD = ""  # what the examiner says of a grammar that can be served
PART_BYTES = 65_536
LONGEST_WAIT_S = 4.0
MOST_WAITING = 16  # threads
BUSY = "too many grammars are being checked: try again later"


def too_long(grammar: Grammar) -> str:
    """Why the grammar need not be looked at; nothing where it is to be."""
    if len(grammar.source) <= LONGEST_SOURCE:
        return ""
    return f"{grammar.kind} has more than {LONGEST_SOURCE} characters"


def check_grammar(grammar: Grammar) -> None:
    """Raises GrammarRefused for what is malformed, impossible, or too much work.

    This starts a process; who checks more than one grammar keeps a GrammarChecker.
    """
    with GrammarChecker() as checker:
        checker.check(grammar)


@dataclass(slots=True)
class _Answers:
    """What was said of grammars; those that can be served are not forgotten for the others."""

    good: OrderedDict[Grammar, str] = field(default_factory=OrderedDict)
    bad: OrderedDict[Grammar, str] = field(default_factory=OrderedDict)

    def get(self, grammar: Grammar) -> str | None:
        return self.good.get(grammar, self.bad.get(grammar))

    def put(self, grammar: Grammar, said: str) -> None:
        answers = self.good if said == GOOD else self.bad
        answers[grammar] = said
        if len(answers) > REMEMBERED:
            answers.popitem(last=False)


@dataclass(slots=True, eq=False)
class GrammarChecker:
    """Owns the process that examines, from the first check to `close`; any thread may call.

    One grammar at a time is examined, and a few others wait their turn: while they do, each
    has less time, and the slow ones are told to come again. Answers are remembered by the
    grammar's text.
    """

    deadline_s: float = DEADLINE_S
    _examiner: "Popen[bytes] | None" = None
    _answers: _Answers = field(default_factory=_Answers)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: list[Grammar] = field(default_factory=list)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(MOST_WAITING, "grammar")
    )
    _room: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(MOST_WAITING)
    )

    async def checked(self, grammar: Grammar) -> None:
        """`check`, while other tasks go on; what is known already waits for nobody."""
        if self._known(grammar):
            return
        if not self._room.acquire(blocking=False):
            raise GrammarCheckBusy(BUSY)
        turn = self._threads.submit(self.check, grammar)
        turn.add_done_callback(lambda _: self._room.release())
        await asyncio.wrap_future(turn)

    def check(self, grammar: Grammar) -> None:
        """Raises GrammarRefused within the deadline, from its turn on; or GrammarCheckBusy."""
        if not self._known(grammar) and (said := self._asked(grammar)) != GOOD:
            raise GrammarRefused(said)

    def _known(self, grammar: Grammar) -> bool:
        """Raises GrammarRefused for what is known to be bad, or need not be looked at."""
        said = too_long(grammar) or self._answers.get(grammar)
        if said:
            raise GrammarRefused(said)
        return said == GOOD

    def _asked(self, grammar: Grammar) -> str:
        self._waiting.append(grammar)
        try:
            if not self._lock.acquire(timeout=LONGEST_WAIT_S):
                raise GrammarCheckBusy(BUSY)
        finally:
            self._waiting.remove(grammar)
        try:
            if (said := self._answers.get(grammar)) is None:
                said = self._ask(grammar)
                self._answers.put(grammar, said)
        finally:
            self._lock.release()
        return said

    def close(self) -> None:
        """End the process, and with it all checks."""
        with self._lock:
            self._end()
        self._threads.shutdown(wait=False)

    def __del__(self) -> None:
        """Who forgets it leaves no process behind."""
        self._end()

    def __enter__(self) -> "GrammarChecker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, grammar: Grammar) -> str:
        """What is wrong with it; nothing: the empty string. Raises GrammarCheckBusy."""
        examiner = self._start()
        _tell(examiner, grammar)
        short_s = min(CROWDED_S, self.deadline_s)
        line = _read_line(examiner, short_s)
        if line is None:
            if self._waiting:
                self._end()
                raise GrammarCheckBusy(BUSY)
            line = _read_line(examiner, self.deadline_s - short_s)
        if line:
            return msgspec.json.decode(line, type=str)
        status = None if line is None else examiner.wait()
        self._end()
        if status == -signal.SIGKILL:  # that was somebody else, and not for this grammar
            raise GrammarCheckBusy("what checks grammars was killed")
        return f"{grammar.kind} takes too long to compile, or too much memory"

    def _start(self) -> "Popen[bytes]":
        if self._examiner is not None and self._examiner.poll() is not None:
            self._end()  # somebody else has ended it
        if self._examiner is None:
            command = [sys.executable, "-m", EXAMINER]
            self._examiner = Popen(command, stdin=PIPE, stdout=PIPE)
            if not _read_line(self._examiner, START_S):
                self._end()
                raise GrammarCheckBusy(f"{EXAMINER} does not start")
        return self._examiner

    def _end(self) -> None:
        examiner, self._examiner = self._examiner, None
        if examiner is not None:
            with suppress(BrokenPipeError), examiner:
                examiner.kill()


def _tell(process: "Popen[bytes]", grammar: Grammar) -> None:
    """Who has ended meanwhile says nothing: that is heard by the reader."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(msgspec.json.encode(grammar) + b"\n")
        process.stdin.flush()


def _read_line(process: "Popen[bytes]", seconds: float) -> bytes | None:
    """None when it has worked for so long; nothing, or a part, of a process that has ended.

    Its own processor time counts, within PATIENCE: a busy machine is no grammar's fault.
    """
    assert process.stdout is not None
    line, begun, until = b"", _worked_s(process.pid), monotonic() + PATIENCE * seconds
    while not line.endswith(b"\n"):
        left = min(begun + seconds - _worked_s(process.pid), until - monotonic())
        if select.select([process.stdout], [], [], max(0.0, left))[0]:
            part = os.read(process.stdout.fileno(), PART_BYTES)
            if not part:
                break
            line += part
        elif left <= 0:
            return None
    return line


def _worked_s(pid: int) -> float:
    """Its processor time, as clock_getcpuclockid(3) has it; endless once it is gone."""
    try:
        return clock_gettime((~pid << 3) | SCHEDULED)
    except OSError:
        return math.inf
