"""Clients that read their answers to the end, and some that do not."""

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import aiohttp

from tests.e2e.cluster import MODEL

HERE = "127.0.0.1"
PATIENCE_S = 120.0
LEAVING = 0.08  # of all clients
LONGEST_STAY, LONGEST_STAY_S = 30, 0.8


class Asked(Protocol):
    """One call: its number, its path, how many choices it has, and what a client sends."""

    @property
    def number(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def n(self) -> int: ...
    def body(self, model: str) -> dict[str, Any]: ...


class Refused(Exception):
    """The answer is an error, or ends too early."""


@dataclass(slots=True)
class Told:
    """What one client has heard: tokens of each choice, all events, and its longest wait."""

    choices: list[list[int]]
    chunks: list[dict[str, Any]] = field(default_factory=list, repr=False)
    longest_wait_s: float = 0.0
    left: bool = False
    failure: str | None = None


@dataclass(slots=True)
class Clients:
    """As many at once as there are `seats`."""

    session: aiohttp.ClientSession
    url: str
    chance: random.Random
    seats: asyncio.Semaphore
    told: dict[int, Told] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)  # of connections of their own

    @property
    def failures(self) -> int:
        """How many calls failed."""
        return sum(one.failure is not None for one in self.told.values())

    async def come(
        self,
        asked: Sequence[Asked],
        rate: float,
        ask: Callable[[Asked], Coroutine[Any, Any, None]],
    ) -> None:
        """`rate` in a second on average, however many are open; until all have their answer."""
        async with asyncio.TaskGroup() as group:
            for one in asked:
                await asyncio.sleep(self.chance.expovariate(rate))
                group.create_task(ask(one))

    async def ask_alone(self, question: Asked, *, leaves: bool | None = None) -> None:
        """The same over a connection of its own, from a port that is known."""
        own = socket.socket()
        own.setblocking(False)
        own.bind((HERE, 0))
        self.ports[question.number] = own.getsockname()[1]
        connector = aiohttp.TCPConnector(socket_factory=lambda _: own)
        async with aiohttp.ClientSession(connector=connector) as session:
            await replace(self, session=session).ask(question, leaves=leaves)

    async def ask(self, question: Asked, *, leaves: bool | None = None) -> None:
        """One call; what came of it is in `told`."""
        if leaves is None:
            leaves = self.chance.random() < LEAVING
        chunks = self.chance.randrange(1, LONGEST_STAY) if leaves else None
        stay_s = self.chance.uniform(0, LONGEST_STAY_S) if leaves else PATIENCE_S
        choices: list[list[int]] = [[] for _ in range(question.n)]
        told = self.told[question.number] = Told(choices, left=leaves)
        async with self.seats:
            try:
                async with asyncio.timeout(stay_s):
                    await self._read(question, told, chunks)
            except (Refused, aiohttp.ClientError) as failure:
                told.failure = repr(failure)
            except TimeoutError:
                told.failure = None if leaves else f"no answer in {PATIENCE_S:g} s"

    async def _read(self, question: Asked, told: Told, chunks: int | None) -> None:
        finished, heard = 0, time.monotonic()
        async with aclosing(self._chunks(question)) as stream:
            number = 0
            async for chunk in stream:
                number += 1
                now = time.monotonic()
                told.longest_wait_s = max(told.longest_wait_s, now - heard)
                heard = now
                if number == chunks:
                    return
                told.chunks.append(chunk)
                for choice in chunk["choices"]:
                    told.choices[choice["index"]] += choice.get("token_ids") or []
                    finished += choice["finish_reason"] is not None
        if finished != question.n:
            raise Refused(f"{finished} of {question.n} choices have an end")

    async def _chunks(self, question: Asked) -> AsyncGenerator[dict[str, Any]]:
        body = question.body(MODEL)
        timeout = aiohttp.ClientTimeout(total=None)
        url, headers = f"{self.url}{question.path}", {"Connection": "close"}
        post = self.session.post(url, json=body, headers=headers, timeout=timeout)
        async with post as answer:
            if answer.status != 200:
                raise Refused(f"status {answer.status}: {(await answer.text())[:300]}")
            if not body.get("stream"):
                yield await answer.json()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    chunk: dict[str, Any] = json.loads(line[6:])
                    if "error" in chunk:
                        raise Refused(str(chunk["error"]))
                    yield chunk
