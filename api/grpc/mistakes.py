"""Mistakes end a call: a client's, whose message is none, and ours, told by the log alone."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from api.grpc.calls import Context

GRPC_LOG = "grpc._cython.cygrpc"
CLIENT_LEFT = "ExecuteBatchError"  # while a reply was sent
OUR_MISTAKE = "the server made a mistake; its log says which"
log = logging.getLogger(__name__)
Asked = TypeVar("Asked", bound=Message)
Said = TypeVar("Said", bound=Message)


def hide_clients_that_left() -> None:
    """Keep out of the log that clients left: gRPC shows it with a traceback, as an error."""
    logging.getLogger(GRPC_LOG).addFilter(_is_told)


def _is_told(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != CLIENT_LEFT


def guarded_call(
    serve: Callable[[Asked, Context], Awaitable[Said]], kind: type[Asked]
) -> Callable[[bytes, Context], Awaitable[Said]]:
    """The call for a message of a kind that is still to be read. gRPC itself would log what a
    client got wrong, and tell it of any exception, all as UNKNOWN.
    """

    async def call(data: bytes, context: Context) -> Said:
        request = await _read(data, kind, context)
        try:
            return await serve(request, context)
        except Exception as failure:  # noqa: BLE001  whatever it is, it goes to the log
            await _end(failure, request, context)

    return call


def guarded_stream(
    serve: Callable[[Asked, Context], AsyncGenerator[Said]], kind: type[Asked]
) -> Callable[[bytes, Context], AsyncGenerator[Said]]:
    """The same for a call with several replies."""

    async def stream(data: bytes, context: Context) -> AsyncGenerator[Said]:
        request = await _read(data, kind, context)
        try:
            async with aclosing(serve(request, context)) as replies:
                async for reply in replies:
                    yield reply
        except Exception as failure:  # noqa: BLE001  whatever it is, it goes to the log
            await _end(failure, request, context)

    return stream


async def _read(data: bytes, kind: type[Asked], context: Context) -> Asked:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def _end(failure: Exception, request: Message, context: Context) -> NoReturn:
    """End the call with a status, unless the failure is that it has one."""
    if isinstance(failure, grpc.aio.AbortError):
        raise failure
    name, kind = getattr(request, "request_id", ""), request.DESCRIPTOR.full_name
    log.error("request_id=%s: a call with %s broke off", name, kind, exc_info=failure)
    await context.abort(grpc.StatusCode.INTERNAL, OUR_MISTAKE)
