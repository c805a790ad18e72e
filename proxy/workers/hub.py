"""The hub, in the parent of all workers: tells each what the others know, carries questions.

A worker is told news when it has taken in those before, so one that stands still holds up
nobody and costs no memory. What each counts is looked at every `PAGE_S`, so that little of it
is lost with a worker that is killed; one that ends by itself says it last.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from proxy.workers.api import METRICS
from proxy.workers.board import Board
from proxy.workers.pages import Pages
from proxy.workers.words import (
    Answer,
    Answers,
    Ask,
    Farewell,
    News,
    Put,
    Question,
    Seen,
    Stored,
    Up,
    read_up,
    say,
    talking,
)

TICK_S = 0.05
PATIENCE_S = 0.5  # with a worker that does not answer
PAGE_S = 2.0  # how much of a killed worker's counts may be lost
MOST_UNANSWERED = 16

Worker = int
Waiting = dict[int, "asyncio.Future[bytes | None]"]


@dataclass(slots=True, eq=False)
class Desk:
    """One worker, as long as its connection holds."""

    worker: Worker
    writer: asyncio.StreamWriter
    sent: int = 0
    seen: int = 0
    waiting: Waiting = field(default_factory=dict)
    unanswered: int = 0

    def post(self, board: Board) -> None:
        """Tell what is new, once what was told before is taken in."""
        if self.sent == self.seen and board.version > self.seen:
            self.sent = board.version
            say(self.writer, News(self.sent, board.since(self.seen)))


@dataclass(slots=True)
class Hub:
    """Serves while `run` runs; `own_page` is the parent's part of the metrics."""

    board: Board
    own_page: Callable[[], bytes]
    patience_s: float = PATIENCE_S
    page_s: float = PAGE_S
    pages: Pages = field(default_factory=Pages)
    _desks: dict[Worker, Desk] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _seen: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        """Pass news on, and look at the workers' counts, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            tasks.create_task(self._look())

    @property
    def workers(self) -> int:
        """How many are connected."""
        return len(self._desks)

    async def attend(self, worker: Worker, connection: socket.socket) -> None:
        """One worker, until its connection ends; it has been let in."""
        async with talking(connection) as (reader, writer):
            desk = self._desks[worker] = Desk(worker, writer)
            desk.post(self.board)
            try:
                async with asyncio.TaskGroup() as tasks:
                    while True:
                        self._hear(desk, await read_up(reader), tasks)
            except* (OSError, asyncio.IncompleteReadError):
                pass  # it is gone
            finally:
                await self._part(desk)

    def _hear(self, desk: Desk, word: Up, tasks: asyncio.TaskGroup) -> None:
        match word:
            case Seen():
                tasks.create_task(self._take_note(desk, word.version))
            case Answer():
                desk.unanswered -= 1
                _set(desk.waiting.pop(word.number, None), word.body)
            case Farewell():
                self.pages.keep(desk.worker, word.page)
            case Put():
                tasks.create_task(self._store(desk, word))
            case Ask():
                tasks.create_task(self._carry(desk, word))

    async def _take_note(self, desk: Desk, version: int) -> None:
        desk.seen = version
        desk.post(self.board)
        async with self._seen:
            self._seen.notify_all()

    async def _store(self, desk: Desk, word: Put) -> None:
        """Done when all have it, who is silent excepted."""
        entry = word.entry
        version = self.board.put(entry.kind, entry.name, entry.value)
        for one in self._desks.values():
            one.post(self.board)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience_s), self._seen:
                await self._seen.wait_for(lambda: self._all_have(version))
        say(desk.writer, Stored(word.number))

    def _all_have(self, version: int) -> bool:
        return all(one.seen >= version for one in self._desks.values())

    async def _carry(self, desk: Desk, word: Ask) -> None:
        others = [one for one in self._desks.values() if one is not desk]
        bodies = await self._answers(others, word.kind, word.subject)
        if word.kind == METRICS:
            bodies = [*bodies, self.pages.gone, self.own_page()]
        say(desk.writer, Answers(word.number, bodies))

    async def _answers(
        self, desks: Sequence[Desk], kind: str, subject: str = ""
    ) -> Sequence[bytes]:
        said = await asyncio.gather(*(self._answer(one, kind, subject) for one in desks))
        return [body for body in said if body is not None]

    async def _answer(self, desk: Desk, kind: str, subject: str) -> bytes | None:
        """What it says, or of its counts what it said last."""
        body = await self._asked(desk, Question(next(self._numbers), kind, subject))
        if kind == METRICS:
            if body is not None and self._desks.get(desk.worker) is desk:
                self.pages.keep(desk.worker, body)
            return body if body is not None else self.pages.last(desk.worker)
        return body

    async def _asked(self, desk: Desk, question: Question) -> bytes | None:
        if desk.unanswered >= MOST_UNANSWERED:
            return None
        answered = desk.waiting[question.number] = asyncio.Future()
        desk.unanswered += 1
        say(desk.writer, question)
        try:
            return await asyncio.wait_for(answered, self.patience_s)
        except TimeoutError:
            return None
        finally:
            desk.waiting.pop(question.number, None)

    async def _part(self, desk: Desk) -> None:
        if self._desks.get(desk.worker) is desk:
            del self._desks[desk.worker]
            self.pages.part(desk.worker)
        for answered in desk.waiting.values():
            _set(answered, None)
        async with self._seen:
            self._seen.notify_all()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for desk in self._desks.values():
                desk.post(self.board)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self.page_s)
            await self._answers(list(self._desks.values()), METRICS)


def _set(answered: "asyncio.Future[bytes | None] | None", body: bytes | None) -> None:
    """Who asked may have lost patience."""
    if answered is not None and not answered.done():
        answered.set_result(body)
