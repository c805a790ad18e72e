"""A worker's line to the hub: the other workers, as this one sees them."""

import asyncio
import itertools
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from proxy.workers.api import METRICS, Adopt
from proxy.workers.api import Answer as Answering
from proxy.workers.words import (
    Answer,
    Answers,
    Ask,
    Down,
    Entry,
    Farewell,
    News,
    Put,
    Question,
    Seen,
    Stored,
    read_down,
    say,
    talking,
)

PATIENCE_S = 2.0  # more than the hub has with the others

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Link:
    """Siblings, while `run` runs. `heard_at` is when the hub has said something last."""

    connection: socket.socket
    adopts: dict[str, Adopt] = field(default_factory=dict)
    answers: dict[str, Answering] = field(default_factory=dict)
    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    heard_at: float = field(init=False)
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _writer: asyncio.StreamWriter | None = None
    _waiting: "dict[int, asyncio.Future[Sequence[bytes]]]" = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        """It has just let us in."""
        self.heard_at = self.clock()

    async def run(self) -> None:
        """Take in what the hub says until cancelled; without it this process has to end."""
        async with talking(self.connection) as (reader, self._writer):
            self._open.set()
            try:
                while True:
                    self._hear(await read_down(reader))
            except (OSError, asyncio.IncompleteReadError):
                logger.error("the hub is gone")
                signal.raise_signal(signal.SIGTERM)
            finally:
                self._part()

    async def put(self, kind: str, name: str, value: bytes | None) -> None:
        """See Siblings."""
        number = next(self._numbers)
        await self._said(number, Put(number, Entry(kind, name, value)))

    async def ask(self, kind: str, subject: str = "") -> Sequence[bytes]:
        """See Siblings."""
        number = next(self._numbers)
        return await self._said(number, Ask(number, kind, subject))

    async def _said(self, number: int, word: Put | Ask) -> Sequence[bytes]:
        said = self._waiting[number] = asyncio.Future()
        try:
            async with asyncio.timeout(self.patience_s):
                await self._open.wait()
                if self._writer is None:
                    return ()  # the hub is gone
                say(self._writer, word)
                return await said
        except TimeoutError:
            return ()
        finally:
            del self._waiting[number]

    def _hear(self, word: Down) -> None:
        assert self._writer is not None
        self.heard_at = self.clock()
        match word:
            case News():
                for entry in word.entries:
                    if adopt := self.adopts.get(entry.kind):
                        adopt(entry.name, entry.value)
                say(self._writer, Seen(word.version))
            case Question():
                answer = self.answers.get(word.kind)
                body = answer(word.subject) if answer else None
                say(self._writer, Answer(word.number, body))
            case Stored():
                self._settle(word.number, ())
            case Answers():
                self._settle(word.number, word.bodies)

    def _settle(self, number: int, bodies: Sequence[bytes]) -> None:
        said = self._waiting.get(number)
        if said is not None and not said.done():
            said.set_result(bodies)

    def _part(self) -> None:
        """What was counted stays, and is known to the hub alone from now on."""
        writer, self._writer = self._writer, None
        page = self.answers[METRICS]("") if METRICS in self.answers else None
        if writer is not None and page is not None:
            say(writer, Farewell(page))
