"""A worker's connection to the hub: PeerWorkers over the messages of messages.py."""

import asyncio
import itertools
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from proxy.workers.api import METRICS, QueryHandler, UpdateHandler
from proxy.workers.messages import (
    BroadcastQuery,
    BroadcastReply,
    FinalMetrics,
    FromHub,
    PutAck,
    PutRequest,
    SharedEntry,
    StateUpdate,
    VersionAck,
    WorkerQuery,
    WorkerReply,
    message_streams,
    read_from_hub,
    send_message,
)

PATIENCE_S = 2.0  # more than the hub waits for the other workers

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class HubClient:
    """PeerWorkers, while `run` runs. `heard_at` is when the hub's last message came."""

    connection: socket.socket
    update_handlers: dict[str, UpdateHandler] = field(default_factory=dict)
    query_handlers: dict[str, QueryHandler] = field(default_factory=dict)
    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    heard_at: float = field(init=False)
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _writer: asyncio.StreamWriter | None = None
    _pending: "dict[int, asyncio.Future[Sequence[bytes]]]" = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        """The hub has just admitted this worker."""
        self.heard_at = self.clock()

    async def run(self) -> None:
        """Handle the hub's messages until cancelled; a lost hub stops this process."""
        async with message_streams(self.connection) as (reader, self._writer):
            self._open.set()
            try:
                while True:
                    self._handle(await read_from_hub(reader))
            except (OSError, asyncio.IncompleteReadError):
                logger.error("the hub is gone")
                signal.raise_signal(signal.SIGTERM)
            finally:
                self._close()

    async def put(self, kind: str, name: str, value: bytes | None) -> None:
        """See PeerWorkers."""
        number = next(self._numbers)
        await self._call(PutRequest(number, SharedEntry(kind, name, value)))

    async def ask(self, kind: str, subject: str = "") -> Sequence[bytes]:
        """See PeerWorkers."""
        number = next(self._numbers)
        return await self._call(BroadcastQuery(number, kind, subject))

    async def _call(self, request: PutRequest | BroadcastQuery) -> Sequence[bytes]:
        """Send a request and wait for its reply; empty if none comes in time."""
        reply = self._pending[request.number] = asyncio.Future()
        try:
            async with asyncio.timeout(self.patience_s):
                await self._open.wait()
                if self._writer is None:
                    return ()  # the hub is gone
                send_message(self._writer, request)
                return await reply
        except TimeoutError:
            return ()
        finally:
            del self._pending[request.number]

    def _handle(self, message: FromHub) -> None:
        assert self._writer is not None
        self.heard_at = self.clock()
        match message:
            case StateUpdate():
                for entry in message.entries:
                    if apply := self.update_handlers.get(entry.kind):
                        apply(entry.name, entry.value)
                send_message(self._writer, VersionAck(message.version))
            case WorkerQuery():
                answer = self.query_handlers.get(message.kind)
                body = answer(message.subject) if answer else None
                send_message(self._writer, WorkerReply(message.number, body))
            case PutAck():
                self._resolve(message.number, ())
            case BroadcastReply():
                self._resolve(message.number, message.bodies)

    def _resolve(self, number: int, bodies: Sequence[bytes]) -> None:
        """Resolve a reply, unless the call has timed out."""
        reply = self._pending.get(number)
        if reply is not None and not reply.done():
            reply.set_result(bodies)

    def _close(self) -> None:
        """Send the last metrics: from now on only the hub can report them."""
        writer, self._writer = self._writer, None
        page = self.query_handlers[METRICS]("") if METRICS in self.query_handlers else None
        if writer is not None and page is not None:
            send_message(writer, FinalMetrics(page))
