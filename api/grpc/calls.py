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
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any, Generic, TypeAlias, TypeVar

import grpc
import msgspec
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from api.answering import Answer
from api.choices import TextPiece
from api.encoding import far_too_long, run_off_loop
from api.endpoints import HttpCall, TextEndpoints
from api.errors import ApiError, BadRequest
from api.generator import StreamFailed
from api.text.tokenizing import far_exceeds
from api.wire import shortened

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    501: grpc.StatusCode.UNIMPLEMENTED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
}
FOR_GOOD = (400, 404)  # statuses of calls that nobody repeats
LONGEST_MESSAGE = 500  # of a header, up to 12 bytes a character: clients refuse 8 KiB
READING_COST = 16  # up to so many times the bytes that are encoded inline
NO_HEADERS: Mapping[str, str] = {}
log = logging.getLogger(__name__)
Asked = TypeVar("Asked", bound=Message)
Done = TypeVar("Done")


class CallAborted(Exception):
    """Another call asked for the end of this one."""


@dataclass(slots=True, eq=False)
class _Run:
    name: str
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

    _runs: set[_Run] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._runs)

    @asynccontextmanager
    async def entered(self, name: str) -> AsyncGenerator[_Run]:
        """A call of this id runs in this task; CallAborted ends it if `abort` does."""
        task = asyncio.current_task()
        assert task is not None
        run = _Run(name, task)
        self._runs.add(run)
        try:
            yield run
        except asyncio.CancelledError:
            if run.aborted and not task.uncancel():
                raise CallAborted from None
            raise
        finally:
            self._runs.remove(run)

    def abort(self, names: Iterable[str]) -> None:
        """End the calls of these ids; nothing happens for an id that nobody has, or for ""."""
        wanted = {*names} - {""}
        for run in self._runs:
            if run.name in wanted:
                run.abort()

    def abort_unread(self, since: float) -> None:
        """End the calls with a reply that their clients have not read since then."""
        for run in self._runs:
            if run.sent_at is not None and run.sent_at <= since and not run.aborted:
                log.warning("request_id=%s ends: its client does not read", run.name)
                run.abort()


@dataclass(frozen=True, slots=True)
class RequestForm(Generic[Asked]):
    """How a service's requests are read. `completion_of` makes the body of /v1/completions that
    asks for the same, for a model with this context, or raises BadRequest; `kv_named_by` makes
    only what names KV of it: `kv_transfer_params`, `request_id` and `n`.
    """

    id_of: Callable[[Asked], str]
    completion_of: Callable[[Asked, int | None], Mapping[str, object]]
    kv_named_by: Callable[[Asked], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Completions:
    """Begins the answers of gRPC calls. `give_up` is told of a call that is refused for good,
    or that its client or an abort has ended, with what names KV of its body: unless a leg has
    begun, none will fetch that.
    """

    texts: TextEndpoints
    give_up: Callable[[Mapping[str, object]], Awaitable[None]]
    running: RunningCalls

    @asynccontextmanager
    async def answered(
        self, request: Asked, form: RequestForm[Asked], context: Context
    ) -> AsyncIterator[tuple[Answer, AsyncGenerator[TextPiece]]]:
        """The answer of a request, and its pieces. In this context failures end the call with
        a status; CallAborted is passed on.
        """
        try:
            async with self.running.entered(form.id_of(request)) as run:
                read = partial(form.completion_of, request, self._max_model_len())
                call = HttpCall(NO_HEADERS, _encoded(await _off_loop(request, read)))
                answer = (await self.texts.completions(call)).answer
                async with aclosing(run.pieces(answer)) as pieces:
                    yield answer, pieces
        except (ApiError, StreamFailed) as failure:
            if failure.status in FOR_GOOD:
                await self._give_up(request, form)
            await _refuse(failure, context)
        except (asyncio.CancelledError, CallAborted):
            # its leg, if there was one, has said so itself; otherwise nobody else knows of it
            await self._give_up(request, form)
            raise

    async def _give_up(self, request: Asked, form: RequestForm[Asked]) -> None:
        named = await _off_loop(request, partial(form.kv_named_by, request))
        await self.give_up(named)

    def _max_model_len(self) -> int | None:
        return self.texts.models.listed()[0].max_model_len()


async def _off_loop(request: Message, read: Callable[[], Done]) -> Done:
    return await run_off_loop(request.ByteSize() // READING_COST, read)


async def _refuse(failure: ApiError | StreamFailed, context: Context) -> None:
    said = f"{failure.param}: {failure}" if _unnamed(failure) else str(failure)
    await context.abort(CODES[failure.status], shortened(said, LONGEST_MESSAGE))


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


def copy_ids(ids: Sequence[int], context: int | None, *, truncates: bool) -> list[int]:
    """The token ids of a prompt; of a prompt that is far longer than the context, and to be
    truncated, those that may be kept. Otherwise such a prompt is refused: a copy of it would
    delay all other calls. Raises ContextTooLong.
    """
    if context is None or not far_exceeds(len(ids), context):
        return list(ids)
    if not truncates:
        raise far_too_long(context, context)
    return list(ids[-2 * context :])


def refuse_unknown(name: str, message: Message) -> None:
    """Refuse fields of a newer proto, which may shape the answer. Raises BadRequest."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise BadRequest(f"{name}: field {unknown[0].field_number} is not known here", name)


def without_zeros(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields that are set: in these messages zero, or nothing, stands for a default."""
    return {name: value for name, value in fields.items() if value}
