"""The hub in the parent process: relays shared state and queries between proxy workers.

A worker gets the next update once it has acknowledged the last one, so one that hangs delays no
other and costs no memory. Every `PAGE_S` the hub asks each worker for its metrics, so that
little is lost when one is killed; a worker that ends by itself sends them last.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from proxy.workers.api import METRICS
from proxy.workers.messages import (
    BroadcastQuery,
    BroadcastReply,
    FinalMetrics,
    FromWorker,
    PutAck,
    PutRequest,
    StateUpdate,
    VersionAck,
    WorkerQuery,
    WorkerReply,
    message_streams,
    read_from_worker,
    send_message,
)
from proxy.workers.metrics_pages import MetricsPages
from proxy.workers.shared_state import SharedState

TICK_S = 0.05
PATIENCE_S = 0.5  # for the answer of one worker
PAGE_S = 2.0  # the most of a killed worker's counts that may be lost, in seconds
MAX_PENDING_QUERIES = 16  # of one worker

WorkerId = int
PendingReplies = dict[int, "asyncio.Future[bytes | None]"]


@dataclass(slots=True, eq=False)
class WorkerConnection:
    """One connected worker: the state versions it was sent and has, and its open queries.

    `unanswered` counts queries without a reply, those that timed out included.
    """

    worker: WorkerId
    writer: asyncio.StreamWriter
    sent_version: int = 0
    acked_version: int = 0
    pending: PendingReplies = field(default_factory=dict)
    unanswered: int = 0

    def send_update(self, state: SharedState) -> None:
        """Send what changed, unless an update is still to be acknowledged."""
        if self.sent_version == self.acked_version and state.version > self.acked_version:
            self.sent_version = state.version
            entries = state.entries_since(self.acked_version)
            send_message(self.writer, StateUpdate(self.sent_version, entries))


@dataclass(slots=True)
class Hub:
    """Serves the workers while `run` runs; `parent_metrics` is the parent's own page."""

    state: SharedState
    parent_metrics: Callable[[], bytes]
    patience_s: float = PATIENCE_S
    page_s: float = PAGE_S
    pages: MetricsPages = field(default_factory=MetricsPages)
    _connections: dict[WorkerId, WorkerConnection] = field(default_factory=dict)
    _query_numbers: Iterator[int] = field(default_factory=itertools.count)
    _acknowledged: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        """Send updates and collect metrics until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_updates())
            tasks.create_task(self._collect_metrics())

    @property
    def workers(self) -> int:
        """How many are connected."""
        return len(self._connections)

    async def up_to_date(self) -> None:
        """Return once all connected workers have the state as it is now; there is no limit."""
        await self._until_all_have(self.state.version)

    async def serve_worker(self, worker: WorkerId, connection: socket.socket) -> None:
        """Handle the messages of one admitted worker until its connection ends."""
        async with message_streams(connection) as (reader, writer):
            peer = self._connections[worker] = WorkerConnection(worker, writer)
            peer.send_update(self.state)
            try:
                async with asyncio.TaskGroup() as tasks:
                    while True:
                        self._handle(peer, await read_from_worker(reader), tasks)
            except* (OSError, asyncio.IncompleteReadError):
                pass  # the worker is gone
            finally:
                await self._disconnect(peer)

    def _handle(
        self, peer: WorkerConnection, message: FromWorker, tasks: asyncio.TaskGroup
    ) -> None:
        match message:
            case VersionAck():
                tasks.create_task(self._acknowledge(peer, message.version))
            case WorkerReply():
                peer.unanswered -= 1
                _resolve(peer.pending.pop(message.number, None), message.body)
            case FinalMetrics():
                self.pages.update(peer.worker, message.page)
            case PutRequest():
                tasks.create_task(self._put(peer, message))
            case BroadcastQuery():
                tasks.create_task(self._broadcast(peer, message))

    async def _acknowledge(self, peer: WorkerConnection, version: int) -> None:
        peer.acked_version = version
        peer.send_update(self.state)
        async with self._acknowledged:
            self._acknowledged.notify_all()

    async def _put(self, sender: WorkerConnection, request: PutRequest) -> None:
        """Store an entry; acknowledged once all workers have it, or after `patience_s`."""
        entry = request.entry
        version = self.state.put(entry.kind, entry.name, entry.value)
        for peer in self._connections.values():
            peer.send_update(self.state)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience_s):
                await self._until_all_have(version)
        send_message(sender.writer, PutAck(request.number))

    async def _until_all_have(self, version: int) -> None:
        async with self._acknowledged:
            await self._acknowledged.wait_for(lambda: self._all_have(version))

    def _all_have(self, version: int) -> bool:
        return all(peer.acked_version >= version for peer in self._connections.values())

    async def _broadcast(self, sender: WorkerConnection, query: BroadcastQuery) -> None:
        others = [peer for peer in self._connections.values() if peer is not sender]
        bodies = await self._ask_all(others, query.kind, query.subject)
        if query.kind == METRICS:
            bodies = [*bodies, self.pages.departed, self.parent_metrics()]
        send_message(sender.writer, BroadcastReply(query.number, bodies))

    async def _ask_all(
        self, peers: Sequence[WorkerConnection], kind: str, subject: str = ""
    ) -> Sequence[bytes]:
        replies = await asyncio.gather(*(self._ask(peer, kind, subject) for peer in peers))
        return [body for body in replies if body is not None]

    async def _ask(self, peer: WorkerConnection, kind: str, subject: str) -> bytes | None:
        """The worker's answer; if it does not return metrics, its last page."""
        body = await self._query(peer, WorkerQuery(next(self._query_numbers), kind, subject))
        if kind == METRICS:
            if body is not None and self._connections.get(peer.worker) is peer:
                self.pages.update(peer.worker, body)
            return body if body is not None else self.pages.last(peer.worker)
        return body

    async def _query(self, peer: WorkerConnection, query: WorkerQuery) -> bytes | None:
        if peer.unanswered >= MAX_PENDING_QUERIES:
            return None
        reply = peer.pending[query.number] = asyncio.Future()
        peer.unanswered += 1
        send_message(peer.writer, query)
        try:
            return await asyncio.wait_for(reply, self.patience_s)
        except TimeoutError:
            return None
        finally:
            peer.pending.pop(query.number, None)

    async def _disconnect(self, peer: WorkerConnection) -> None:
        """Move the worker's metrics to the departed ones, unless it has connected again."""
        if self._connections.get(peer.worker) is peer:
            del self._connections[peer.worker]
            self.pages.depart(peer.worker)
        for reply in peer.pending.values():
            _resolve(reply, None)
        async with self._acknowledged:
            self._acknowledged.notify_all()

    async def _send_updates(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for peer in self._connections.values():
                peer.send_update(self.state)

    async def _collect_metrics(self) -> None:
        while True:
            await asyncio.sleep(self.page_s)
            await self._ask_all(list(self._connections.values()), METRICS)


def _resolve(reply: "asyncio.Future[bytes | None] | None", body: bytes | None) -> None:
    """Resolve a reply, unless the query has timed out."""
    if reply is not None and not reply.done():
        reply.set_result(body)
