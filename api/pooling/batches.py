"""Runs any number of pooling requests, in batches small enough to share a cluster."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from api.generator import Embedder, PooledEvent, StreamFailed
from engine.request import PoolingRequest

MOST_AT_ONCE = 32
MOST_TOKENS_AT_ONCE = 16_384
BATCHES_AT_ONCE = 4


class NonFiniteVector(StreamFailed):
    """The model's vector has NaN or infinite entries."""

    retryable = False
    status = 500


@dataclass(frozen=True, slots=True)
class Vector:
    """One float32 vector, or one for each token: [rows, width]."""

    rows: "np.ndarray[tuple[int, int], np.dtype[np.float32]]"

    @property
    def values(self) -> list[float]:
        """All numbers, row by row."""
        values: list[float] = self.rows.ravel().tolist()
        return values


@dataclass(slots=True)
class PoolingBatches:
    """Runs one body's requests in batches, a few batches at a time."""

    embedder: Embedder
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(BATCHES_AT_ONCE))

    async def run(self, requests: Sequence[PoolingRequest]) -> list[Vector]:
        """Run the requests, with results in their order; raises StreamFailed if any of them
        fails.

        Cancelling it aborts all of them.
        """
        tasks = [asyncio.create_task(self._one(some)) for some in split_batches(requests)]
        try:
            pooled = await asyncio.gather(*tasks)
        finally:
            await _end(tasks)
        return [vector for some in pooled for vector in some]

    async def _one(self, requests: Sequence[PoolingRequest]) -> list[Vector]:
        async with self._room:
            return [vector_of(one) for one in await self.embedder.embed(requests)]


async def _end(tasks: list[asyncio.Task[list[Vector]]]) -> None:
    """Cancel what still runs, and let go of all: what failed has frames that keep the list."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


def split_batches(requests: Sequence[PoolingRequest]) -> Iterator[Sequence[PoolingRequest]]:
    """Consecutive requests, limited in number and tokens; a long one is a batch by itself."""
    first, tokens = 0, 0
    for index, one in enumerate(requests):
        tokens += len(one.prompt)
        full = index - first == MOST_AT_ONCE or tokens > MOST_TOKENS_AT_ONCE
        if full and index > first:
            yield requests[first:index]
            first, tokens = index, len(one.prompt)
    if first < len(requests):
        yield requests[first:]


def vector_of(event: PooledEvent) -> Vector:
    """The vector of an event; raises NonFiniteVector, as JSON has no NaN or infinity."""
    rows = np.frombuffer(event.values, np.float32).reshape(-1, event.width)
    if not np.isfinite(rows).all():
        raise NonFiniteVector("the model's vector has entries that are no numbers")
    return Vector(rows)
