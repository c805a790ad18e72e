"""Runs a gRPC call as the completion that it stands for.

Errors become gRPC statuses, and a call can be aborted by another one that names its id.
"""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeAlias

import grpc
import msgspec
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from api.answering import Answer
from api.choices import TextPiece
from api.endpoints import HttpCall, TextEndpoints
from api.errors import ApiError, BadRequest, shortened
from api.generator import StreamFailed

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
LONGEST_MESSAGE = 500  # of a header, up to 12 bytes a character: clients refuse 8 KiB
NAMES_KV = "kv_transfer_params", "request_id", "n"
NO_HEADERS: Mapping[str, str] = {}
log = logging.getLogger(__name__)


class CallAborted(Exception):
    """Another call asked for the end of this one."""


@dataclass(slots=True, eq=False)
class _Run:
    task: "asyncio.Task[Any]"
    aborted: bool = False
    sent_at: float | None = None
    """While a reply is sent: since when. gRPC has the task then, and would lose the call if
    that were cancelled.
    """
    _pieces: AsyncGenerator[TextPiece] | None = None
    _ending: "asyncio.Task[None] | None" = None

    def abort(self) -> None:
        """The engine stops at once, even if a reply is being sent to a client that is slow."""
        if self.aborted:
            return
        self.aborted = True
        if self.sent_at is None:
            self.task.cancel()
        else:
            assert self._pieces is not None
            self._ending = asyncio.create_task(self._pieces.aclose())

    async def pieces(self, answer: Answer) -> AsyncGenerator[TextPiece]:
        """Its pieces; an abort while one of them is sent is told behind it."""
        open_choices, clock = len(answer.choices), asyncio.get_running_loop().time
        self._pieces = pieces = answer.pieces()
        try:
            async for piece in pieces:
                open_choices -= piece.finish is not None
                self.sent_at = clock()
                yield piece
                self.sent_at = None
                if self.aborted:
                    break
        finally:
            if self._ending is not None:
                await self._ending
            await pieces.aclose()
        if self.aborted and open_choices:
            raise CallAborted


@dataclass(slots=True)
class RunningCalls:
    """The calls that run, by the ids that their callers gave them."""

    _runs: dict[str, list[_Run]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

    @asynccontextmanager
    async def entered(self, name: str) -> AsyncGenerator[_Run]:
        """A call of this id runs in this task; CallAborted ends it if `abort` does."""
        task = asyncio.current_task()
        assert task is not None
        run = _Run(task)
        self._runs.setdefault(name, []).append(run)
        try:
            yield run
        except asyncio.CancelledError:
            if run.aborted and not task.uncancel():
                raise CallAborted from None
            raise
        finally:
            self._runs[name].remove(run)
            if not self._runs[name]:
                del self._runs[name]

    def abort(self, names: Iterable[str]) -> None:
        """End the calls of these ids; nothing happens for an id that nobody has, or for ""."""
        for run in [run for name in names if name for run in self._runs.get(name, ())]:
            run.abort()

    def abort_unread(self, since: float) -> None:
        """End the calls with a reply that their clients have not read since then."""
        for name, runs in self._runs.items():
            for run in runs:
                if run.sent_at is not None and run.sent_at <= since and not run.aborted:
                    log.warning("request_id=%s ends: its client does not read", name)
                    run.abort()


@dataclass(frozen=True, slots=True)
class Completions:
    """Begins the answers of gRPC calls. `give_up` is told of a call that is refused for good,
    with what NAMES_KV has of its body: no leg will fetch that KV.
    """

    texts: TextEndpoints
    give_up: Callable[[Mapping[str, object]], Awaitable[None]]
    running: RunningCalls

    @asynccontextmanager
    async def answered(
        self, body: Mapping[str, object], context: Context
    ) -> AsyncIterator[tuple[Answer, AsyncGenerator[TextPiece]]]:
        """The answer of a body of /v1/completions, and its pieces. In this context failures end
        the call with a status; CallAborted is passed on.
        """
        try:
            async with self.running.entered(str(body.get("request_id", ""))) as run:
                call = HttpCall(NO_HEADERS, _encoded(body))
                answer = (await self.texts.completions(call)).answer
                async with aclosing(run.pieces(answer)) as pieces:
                    yield answer, pieces
        except (ApiError, StreamFailed) as failure:
            await self.refuse(failure, body, context)

    async def refuse(
        self, failure: ApiError | StreamFailed, body: Mapping[str, object], context: Context
    ) -> None:
        """End the call with a status; KV that its body names may be given up."""
        if failure.status in FOR_GOOD:
            await self.give_up({name: body.get(name) for name in NAMES_KV})
        code = CODES.get(failure.status, grpc.StatusCode.INTERNAL)
        said = f"{failure.param}: {failure}" if _unnamed(failure) else str(failure)
        await context.abort(code, shortened(said, LONGEST_MESSAGE))


def _encoded(body: Mapping[str, object]) -> bytes:
    """As JSON, which has no number for NaN and infinity; raises BadRequest."""
    for name, value in body.items():
        if isinstance(value, float) and not isfinite(value):
            raise BadRequest(f"{name}: not a finite number", name)
    try:
        return msgspec.json.encode(body)
    except RecursionError as error:
        raise BadRequest("the parameters are nested too deeply") from error


def _unnamed(failure: ApiError | StreamFailed) -> bool:
    """Whether the message does not say which field is wrong."""
    return failure.param is not None and failure.param not in str(failure)


def refuse_unknown(name: str, message: Message) -> None:
    """Refuse fields of a newer proto, which may shape the answer. Raises BadRequest."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise BadRequest(f"{name}: field {unknown[0].field_number} is not known here", name)


def without_zeros(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields that are set: in these messages zero, or nothing, stands for a default."""
    return {name: value for name, value in fields.items() if value}
