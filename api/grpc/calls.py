"""Runs a gRPC call as the completion that it stands for.

Errors become gRPC statuses, and a call can be aborted by another one that names its id.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import msgspec

from api.answering import Answer
from api.endpoints import HttpCall, TextEndpoints
from api.errors import LONGEST_MESSAGE, ApiError, shortened
from api.generate import read_leg
from api.generator import Leg, StreamFailed
from kv_transfer.errors import MalformedTicket

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
FOR_GOOD = (400, 404)  # statuses of calls that nobody repeats
NO_HEADERS: Mapping[str, str] = {}


class CallAborted(Exception):
    """Another call asked for the end of this one."""


@dataclass(slots=True, eq=False)
class _Run:
    task: "asyncio.Task[Any]"
    aborted: bool = False


@dataclass(slots=True)
class RunningCalls:
    """The calls that run, by the ids that their callers gave them."""

    _runs: dict[str, list[_Run]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

    @asynccontextmanager
    async def entered(self, name: str) -> AsyncGenerator[None]:
        """A call of this id runs in this task; CallAborted ends it if `abort` does."""
        task = asyncio.current_task()
        assert task is not None
        run = _Run(task)
        self._runs.setdefault(name, []).append(run)
        try:
            yield
        except asyncio.CancelledError:
            if run.aborted and not task.uncancel():
                raise CallAborted from None
            raise
        finally:
            self._runs[name].remove(run)
            if not self._runs[name]:
                del self._runs[name]

    def abort(self, names: Iterable[str]) -> None:
        """End the calls of these ids; nothing happens for an id that nobody has."""
        for run in (run for name in names for run in self._runs.get(name, ())):
            if not run.aborted:
                run.aborted = True
                run.task.cancel()


@dataclass(frozen=True, slots=True)
class Completions:
    """Begins the answers of gRPC calls. `decline` is told of KV that no leg will fetch."""

    texts: TextEndpoints
    decline: Callable[[Leg], Awaitable[None]]
    running: RunningCalls

    @asynccontextmanager
    async def answered(
        self, body: Mapping[str, object], context: Context
    ) -> AsyncIterator[Answer]:
        """The answer of a body of /v1/completions. In this context failures end the call with
        a status; CallAborted is passed on.
        """
        try:
            async with self.running.entered(str(body.get("request_id", ""))):
                data = msgspec.json.encode(body)
                yield (await self.texts.completions(HttpCall(NO_HEADERS, data))).answer
        except (ApiError, StreamFailed) as failure:
            if failure.status in FOR_GOOD:
                await self._give_up(body.get("kv_transfer_params"))
            await refuse(context, failure)

    async def _give_up(self, params: object) -> None:
        try:
            leg = read_leg(params if isinstance(params, dict) else None)
        except MalformedTicket:
            return
        if leg.ticket is not None:
            await self.decline(leg)


async def refuse(context: Context, failure: ApiError | StreamFailed) -> None:
    """End the call with the failure's status and message."""
    code = CODES.get(failure.status, grpc.StatusCode.INTERNAL)
    said = f"{failure.param}: {failure}" if _unnamed(failure) else str(failure)
    await context.abort(code, shortened(said, LONGEST_MESSAGE))


def _unnamed(failure: ApiError | StreamFailed) -> bool:
    """Whether the message does not say which field is wrong."""
    return failure.param is not None and failure.param not in str(failure)


def without_zeros(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields that are set: in these messages zero, or nothing, stands for a default."""
    return {name: value for name, value in fields.items() if value}
