"""gRPC's health service, whose watchers do not keep a server that stops."""

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from api.grpc.calls import Context

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LEAVES = "the server stops"


class Health(health.aio.HealthServicer):
    """Its watchers wait for news without end, so they have to be ended."""

    def __init__(self) -> None:
        super().__init__()
        self._watching = set[asyncio.Task[None]]()

    async def Watch(  # noqa: N802  gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> None:
        """Tell of each change, and at the end that nothing is served."""
        heard: Any = _Heard(context)
        watching = asyncio.create_task(super().Watch(request, heard))
        self._watching.add(watching)
        try:
            await watching
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            if heard.status == SERVING:
                await heard.write(health_pb2.HealthCheckResponse(status=NOT_SERVING))
            await context.abort(grpc.StatusCode.UNAVAILABLE, LEAVES)
        finally:
            self._watching.discard(watching)

    def end_watches(self) -> None:
        """To be called once nothing is served any more."""
        for watching in self._watching:
            watching.cancel()


@dataclass(slots=True)
class _Heard:
    """A watcher, and what it was last told. Who writes may be cancelled, but not a write:
    gRPC has no room for another one before its end.
    """

    context: Any
    status: int | None = None
    written: "asyncio.Future[None] | None" = None

    async def write(self, reply: health_pb2.HealthCheckResponse) -> None:
        if self.written is not None:
            await self.written
        self.status = reply.status
        self.written = asyncio.ensure_future(self.context.write(reply))
        self.written.add_done_callback(_note)  # also if nobody waits for it any more
        await asyncio.shield(self.written)


def _note(written: "asyncio.Future[None]") -> None:
    if not written.cancelled():
        written.exception()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
