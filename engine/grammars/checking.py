"""Checks within a deadline whether a grammar can be served. Torch-free.

llguidance bounds most of its work, but not all of it, and none of it can be interrupted. So
the check runs in its own process, which is killed if it takes too long: nothing that a client
sends can hang or kill the HTTP server.
"""

import asyncio
import math
import os
import select
import signal
import sys
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import PIPE, Popen
from time import clock_gettime, monotonic
from types import TracebackType

import msgspec

from engine.errors import GrammarCheckBusy, GrammarRefused
from engine.request import LONGEST_SOURCE, Grammar

DEADLINE_S = 0.8
CROWDED_S = 0.4  # the deadline while others wait; enough for nearly all grammars
PATIENCE = 4  # on a busy machine, this many times the deadline may pass
SCHEDULED = 2  # Linux's number for the clock of a process's CPU time
START_S = 10.0  # a new process on a busy machine
REMEMBERED = 256  # grammars that can be served, and as many that cannot
EXAMINER = "engine.grammars.examining"
GOOD = ""  # the examiner's reply for a grammar that can be served
PART_BYTES = 65_536
LONGEST_WAIT_S = 4.0
BUSY = "too many grammars are being checked: try again later"


def too_long(grammar: Grammar) -> str:
    """Why a grammar is refused without examination; empty if it must be examined."""
    if len(grammar.source) <= LONGEST_SOURCE:
        return ""
    return f"{grammar.kind} has more than {LONGEST_SOURCE} characters"


@dataclass(slots=True)
class _Answers:
    """A cache of replies; good grammars and refused ones are evicted separately."""

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
    """Owns the examining process, from the first check to `close`; any thread may call.

    One grammar at a time is examined, in the order of the calls. While others wait, each has
    less time, and slow ones get GrammarCheckBusy, as do those whose turn comes too late.
    Replies are cached by the grammar's text; who waits for the same one is no crowd.
    """

    deadline_s: float = DEADLINE_S
    _examiner: "Popen[bytes] | None" = None
    _first_ready_s: float = -math.inf
    _answers: _Answers = field(default_factory=_Answers)
    _turns: dict[Future[None], Grammar] = field(default_factory=dict)
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "grammar")
    )

    async def checked(self, grammar: Grammar) -> None:
        """`check` without blocking other tasks; a cached reply is immediate."""
        if not self._known(grammar):
            await asyncio.wrap_future(self._turn(grammar))

    def check(self, grammar: Grammar) -> None:
        """Raises GrammarRefused or GrammarCheckBusy; the deadline begins with its turn."""
        if not self._known(grammar):
            self._turn(grammar).result()

    def _known(self, grammar: Grammar) -> bool:
        """Whether it is known to be good; raises GrammarRefused if known to be bad."""
        said = too_long(grammar) or self._answers.get(grammar)
        if said:
            raise GrammarRefused(said)
        return said == GOOD

    def _turn(self, grammar: Grammar) -> Future[None]:
        left = [grammar]
        try:
            turn = self._thread.submit(self._check_what_is, left, monotonic())
        except RuntimeError as error:  # the system has no thread left for this process
            left.clear()  # as the pool keeps a turn that it has no thread for
            raise GrammarCheckBusy(f"grammars cannot be checked now: {error}") from error
        self._turns[turn] = grammar
        turn.add_done_callback(self._turns.pop)
        return turn

    def _check_what_is(self, left: list[Grammar], asked_s: float) -> None:
        for grammar in left:
            if not self._known(grammar):
                self._examine(grammar, asked_s)

    def _examine(self, grammar: Grammar, asked_s: float) -> None:
        """Waiting for the first start of the process is no sign of a crowd."""
        if monotonic() - max(asked_s, self._first_ready_s) > LONGEST_WAIT_S:
            raise GrammarCheckBusy(BUSY)
        said = self._ask(grammar)
        self._answers.put(grammar, said)
        if said != GOOD:
            raise GrammarRefused(said)

    def close(self) -> None:
        """End the process once the check that runs is over; those that wait are cancelled."""
        self._thread.shutdown(cancel_futures=True)
        self._end()

    def __del__(self) -> None:
        """End the process if `close` was not called."""
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
        """What is wrong with a grammar, or an empty string. Raises GrammarCheckBusy."""
        examiner = self._start()
        _tell(examiner, grammar)
        short_s = min(CROWDED_S, self.deadline_s)
        line = _read_line(examiner, short_s)
        if line is None:
            if any(one != grammar for one in list(self._turns.values())):
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
            try:
                self._examiner = Popen(command, stdin=PIPE, stdout=PIPE)
            except OSError as error:  # the system has no process, file or memory left
                raise GrammarCheckBusy(f"{EXAMINER} does not start: {error}") from error
            if not _read_line(self._examiner, START_S):
                self._end()
                raise GrammarCheckBusy(f"{EXAMINER} does not start")
            if self._first_ready_s < 0:
                self._first_ready_s = monotonic()
        return self._examiner

    def _end(self) -> None:
        examiner, self._examiner = self._examiner, None
        if examiner is not None:
            with suppress(BrokenPipeError), examiner:
                examiner.kill()


def _tell(process: "Popen[bytes]", grammar: Grammar) -> None:
    """Send a grammar; an examiner that has ended is no error here, as the reader notices it."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(msgspec.json.encode(grammar) + b"\n")
        process.stdin.flush()


def _read_line(process: "Popen[bytes]", seconds: float) -> bytes | None:
    """The next line; None once the process has worked for `seconds`.

    The line is incomplete or empty if the process has ended. Its own CPU time counts, within
    PATIENCE, because a busy machine is not the grammar's fault.
    """
    assert process.stdout is not None
    line, begun, until = b"", _worked_s(process.pid), monotonic() + PATIENCE * seconds
    poller = select.poll()  # select() takes no descriptor above 1023
    poller.register(process.stdout, select.POLLIN)
    while not line.endswith(b"\n"):
        left = min(begun + seconds - _worked_s(process.pid), until - monotonic())
        if poller.poll(math.ceil(1000 * max(0.0, left))):
            part = os.read(process.stdout.fileno(), PART_BYTES)
            if not part:
                break
            line += part
        elif left <= 0:
            return None
    return line


def _worked_s(pid: int) -> float:
    """A process's CPU time, by clock_getcpuclockid(3); infinite once it is gone."""
    try:
        return clock_gettime((~pid << 3) | SCHEDULED)
    except OSError:
        return math.inf
