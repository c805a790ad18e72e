"""Merges the streams of a request's choices into one."""

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Self, TypeVar

from api.starting import Starts

AHEAD = 64  # items read before they are asked for
CLOSING = 8  # in one turn of the event loop
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


@dataclass(slots=True)
class Streams(Generic[Key, Item]):
    """Reads several streams at once and owns them: leaving the context closes them all.

    Each stream has one reader task. The queue is bounded: a slow consumer makes them wait. A
    request may have thousands of streams, each of which does much before it first waits and
    when it is closed, so a few at a time start, and are closed: other requests go on meanwhile.
    """

    _items: "asyncio.Queue[tuple[Key, Item | Exception | None]]" = field(
        default_factory=lambda: asyncio.Queue(AHEAD)
    )
    _readers: dict[Key, "asyncio.Task[None]"] = field(default_factory=dict)
    _open: int = 0
    _starts: Starts = field(default_factory=Starts)
    _leaving: bool = False  # none starts any more

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leaving = True
        running = [one for one in self._readers.values() if not one.done()]
        try:
            while running:
                running.pop().cancel()
                if len(running) % CLOSING == 0:
                    await asyncio.sleep(0)
        finally:  # all the others at once if there is no time for turns
            for reader in running:
                reader.cancel()
            await asyncio.gather(*self._readers.values(), return_exceptions=True)
            # those that were cancelled, and failures that nobody took, have frames that keep us
            self._readers.clear()
            self._items = asyncio.Queue()

    def open(self, key: Key, stream: AsyncGenerator[Item]) -> None:
        """Start reading one more stream; a key has at most one."""
        self._readers[key] = asyncio.create_task(self._read(key, stream))
        self._open += 1

    async def next(self) -> tuple[Key, Item] | None:
        """The next item and its key, in order of arrival; None: all streams have ended.

        Raises what a stream raises. A call that is cancelled loses nothing.
        """
        while self._open:
            key, said = await self._items.get()
            if said is None:
                self._open -= 1
            elif isinstance(said, Exception):
                try:
                    raise said
                finally:
                    del said  # its traceback has this frame, and would keep the request
            else:
                return key, said
        return None

    async def _read(self, key: Key, stream: AsyncGenerator[Item]) -> None:
        try:
            async with aclosing(stream):
                await self._starts.wait()
                if self._leaving:
                    return
                async for item in stream:
                    await self._items.put((key, item))
        except Exception as error:  # noqa: BLE001  raised again by `next`
            await self._items.put((key, error))
        else:
            await self._items.put((key, None))
