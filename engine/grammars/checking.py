"""Whether a grammar can be served, found out within a deadline. Torch-free.

llguidance bounds most of its work, but not all of it, and none of it can be interrupted. So
the check runs in a process of its own, which is ended when it takes too long: nothing that a
client sends can hang or kill the door.
"""

import asyncio
import os
import select
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from subprocess import PIPE, Popen
from time import monotonic
from types import TracebackType

import msgspec

from engine.errors import GrammarRefused
from engine.request import Grammar

DEADLINE_S = 0.8
START_S = 10.0  # a new process on a busy machine
REMEMBERED = 256
EXAMINER = "engine.grammars.examining"
GOOD = ""  # what the examiner says of a grammar that can be served
PART_BYTES = 65_536
LONGEST_WAIT_S = 4.0
WAITING = 16  # threads


def check_grammar(grammar: Grammar) -> None:
    """Raises GrammarRefused for what is malformed, impossible, or too much work.

    This starts a process; who checks more than one grammar keeps a GrammarChecker.
    """
    with GrammarChecker() as checker:
        checker.check(grammar)


@dataclass(slots=True, eq=False)
class GrammarChecker:
    """Owns the process that examines, from the first check to `close`; any thread may call.

    One grammar at a time is examined, and others wait their turn: not for ever, or a flood of
    slow ones would hold up all. Answers are remembered by the grammar's text.
    """

    deadline_s: float = DEADLINE_S
    _examiner: "Popen[bytes] | None" = None
    _answers: OrderedDict[Grammar, str] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(WAITING, "grammar")
    )

    async def checked(self, grammar: Grammar) -> None:
        """`check`, while other tasks go on."""
        if self._answers.get(grammar) != GOOD:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self.check, grammar)

    def check(self, grammar: Grammar) -> None:
        """Raises GrammarRefused, within the deadline once it is its turn."""
        said = self._answers.get(grammar)
        if said is None:
            said = self._asked(grammar)
        if said != GOOD:
            raise GrammarRefused(said)

    def _asked(self, grammar: Grammar) -> str:
        if not self._lock.acquire(timeout=LONGEST_WAIT_S):
            raise GrammarRefused(f"{grammar.kind}: too many grammars are being checked")
        try:
            said = self._answers[grammar] = self._ask(grammar)
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
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
        """What is wrong with it; nothing: the empty string."""
        examiner = self._start()
        assert examiner.stdin is not None
        try:
            examiner.stdin.write(msgspec.json.encode(grammar) + b"\n")
            examiner.stdin.flush()
            line = _read_line(examiner, self.deadline_s)
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            self._end()
            return f"{grammar.kind} takes too long to compile, or too much memory"
        return msgspec.json.decode(line, type=str)

    def _start(self) -> "Popen[bytes]":
        if self._examiner is None:
            command = [sys.executable, "-m", EXAMINER]
            self._examiner = Popen(command, stdin=PIPE, stdout=PIPE)
            if not _read_line(self._examiner, START_S):
                self._end()
                raise RuntimeError(f"{EXAMINER} does not start")
        return self._examiner

    def _end(self) -> None:
        if self._examiner is not None:
            self._examiner.kill()
            self._examiner.communicate()
            self._examiner = None


def _read_line(process: "Popen[bytes]", seconds: float) -> bytes:
    """As much of a line as there is when the time is up, or the process has ended."""
    assert process.stdout is not None
    line, until = b"", monotonic() + seconds
    while not line.endswith(b"\n"):
        if not select.select([process.stdout], [], [], max(0.0, until - monotonic()))[0]:
            break
        part = os.read(process.stdout.fileno(), PART_BYTES)
        if not part:
            break
        line += part
    return line
