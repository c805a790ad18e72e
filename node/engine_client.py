"""The door's client of the engine process: starts it, monitors it, and streams each leg."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
import zmq
import zmq.asyncio

from api.generator import (
    WHOLE,
    Event,
    FailedEvent,
    Leg,
    NodeLeaving,
    PooledEvent,
    RequestRefused,
    StreamFailed,
    Tap,
)
from engine.api import EngineLoad
from engine.request import PoolingRequest, Request, RequestId
from node.engine_environment import engine_environment
from node.failures import first_failure
from node.ipc import (
    NO_LOAD,
    Abort,
    DeclineLeg,
    EngineOutputs,
    EngineProcessConfig,
    EngineReady,
    EngineStartFailed,
    SetNiceness,
    SubmitLeg,
    SubmitPooling,
    ToEngine,
    decode_from_engine,
    encode,
)
from node.leg_inbox import LegInbox, is_last, leg_id

ENGINE_PROCESS = "node.engine_process"
ENGINE_SILENT_S = 5.0  # an engine without heartbeats for this long is not healthy
KEEPALIVE_S = 2.0
SWEEP_LATE_S = 2.0  # nor is one that expires leases this late
# parked: the prefill node still offers the KV of such a decode leg
STOPPING = FailedEvent("the node is stopping", retryable=True, parked=True, leaving=True)


class EngineDied(RuntimeError):
    """The engine process ended, or never became ready; the text says why."""


@dataclass(slots=True)
class EngineClient:
    """A Generator over one engine process; owns the process from `start` to `stop`.

    Closing a stream aborts its leg, unless the leg is complete. `quiescent` is set while no leg
    is open and no KV block is in use, so none waits to be fetched.
    """

    process: Process
    socket: zmq.asyncio.Socket
    ready: EngineReady
    on_outputs: Callable[[EngineOutputs], None] = lambda outputs: None
    load: EngineLoad = NO_LOAD
    heard_at: float = field(default_factory=time.monotonic)
    sweep_late_s: float = 0.0
    quiescent: asyncio.Event = field(default_factory=asyncio.Event)
    _inboxes: dict[RequestId, LegInbox] = field(default_factory=dict)
    _legs: int = 0
    _rejecting: bool = False

    @classmethod
    async def start(cls, job: EngineProcessConfig) -> "EngineClient":
        """Start the process and wait until its model is loaded; raises EngineDied."""
        socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind(job.ipc_address)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", ENGINE_PROCESS),
            stdin=PIPE,
            env=engine_environment(os.environ),
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        ready = await _until_ready(process, socket)
        return cls(process, socket, ready, load=ready.load)

    @property
    def alive(self) -> bool:
        """Whether the engine is healthy, so that the node may register."""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Why it is not healthy: the process is gone or silent, or its hand-overs are stuck."""
        silent_s = time.monotonic() - self.heard_at
        if self.process.returncode is not None or silent_s >= ENGINE_SILENT_S:
            return "the engine process does not answer"
        if self.sweep_late_s >= SWEEP_LATE_S:
            return f"hand-overs are stuck: leases are seen to {self.sweep_late_s:.1f} s late"
        return None

    async def run(self) -> None:
        """Pass events on to their legs until the process ends; raises EngineDied then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._send_keepalives())
                tasks.create_task(self._watch())
        except BaseExceptionGroup as failures:
            raise first_failure(failures, EngineDied) or failures from None
        finally:
            self._put_to_all(
                FailedEvent("the engine process died", retryable=True, parked=True)
            )

    def reject_legs(self) -> None:
        """Fail all open legs, and those that come from now on, so that they move elsewhere."""
        self._rejecting = True
        self._put_to_all(STOPPING)

    @property
    def num_legs(self) -> int:
        """How many legs are open."""
        return len(self._inboxes)

    def migrate_legs(self) -> None:
        """End decode legs whose proxies can continue them at another node; they do so."""
        reason = "the node changes its role"
        leaving = FailedEvent(reason, retryable=True, parked=True, leaving=True)
        for inbox in self._inboxes.values():
            if inbox.can_migrate and not inbox.migrated:
                inbox.migrated = True
                inbox.put(leaving)

    async def decline(self, leg: Leg) -> None:
        """The call for this leg was refused: no leg will fetch its KV."""
        await self._send(DeclineLeg.of(leg))

    async def renice(self, niceness: int) -> None:
        """Set the engine process's niceness, relative to this process's."""
        await self._send(SetNiceness(niceness))

    async def stop(self) -> None:
        """Kill the process, a stopped one as well; KV that it offers is lost."""
        if self.process.returncode is None:
            self.process.kill()  # SIGTERM would give it nothing more to do
            await self.process.wait()
        self.socket.close(linger=0)

    async def events(
        self, request: Request, leg: Leg = WHOLE, *, read_to_end: bool = False
    ) -> AsyncGenerator[Event | None]:
        """One leg's events, a FailedEvent included.

        None is a keep-alive: there is no event, and the engine is healthy. With `read_to_end`
        a leg is aborted, too, if it is closed at its last event and not behind it.
        """
        rid, inbox = self._open(request.request_id)
        inbox.can_migrate, over = leg.keep_open and leg.ticket is not None, False
        unique = msgspec.structs.replace(request, request_id=rid)
        try:
            await self._send(SubmitLeg.of(unique, leg, time.monotonic()))
            while not over:
                event = await inbox.get()
                assert not isinstance(event, PooledEvent)
                last = event is not None and is_last(event, leg)
                over = last and not read_to_end
                yield event
                over = last
        finally:
            del self._inboxes[rid]
            if not over or inbox.migrated:
                await self._send(Abort(rid))

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        """As `events`, but failures are raised as StreamFailed; for the text API, which tells
        a ticket behind its leg's token.
        """
        async with aclosing(self.events(request, leg, read_to_end=leg.hold)) as events:
            async for event in events:
                if isinstance(event, FailedEvent):
                    raise _failure(event)
                if event is not None:
                    yield event

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        """Run all prompts together; see Embedder."""
        legs = [(self._open(one.request_id), one) for one in requests]
        running = {rid for (rid, _), _ in legs}
        try:
            for (rid, _), one in legs:
                unique = msgspec.structs.replace(one, request_id=rid)
                await self._send(SubmitPooling(unique, time.monotonic()))
            pooled = list[PooledEvent]()
            for (rid, inbox), _ in legs:
                pooled.append(await _vectors(inbox, running, rid))
            return pooled
        finally:
            for (rid, _), _ in legs:
                del self._inboxes[rid]
            for rid in running:
                await self._send(Abort(rid))

    def _open(self, request_id: RequestId) -> tuple[RequestId, LegInbox]:
        """A request id that is unique on this node, and the inbox of its events."""
        self._legs += 1
        rid, inbox = leg_id(request_id, self._legs), LegInbox()
        self._inboxes[rid] = inbox
        self.quiescent.clear()
        if self._rejecting:
            inbox.put(STOPPING)
        return rid, inbox

    async def _send(self, message: ToEngine) -> None:
        if self.process.returncode is None:
            await self.socket.send(encode(message))

    async def _read(self) -> None:
        while True:
            message = decode_from_engine(await self.socket.recv())
            if isinstance(message, EngineOutputs):
                self._apply(message)

    def _apply(self, outputs: EngineOutputs) -> None:
        self.load, self.heard_at = outputs.load, time.monotonic()
        self.sweep_late_s = outputs.sweep_late_s
        self.on_outputs(outputs)
        for rid, event in outputs.events:
            if inbox := self._inboxes.get(rid):
                inbox.put(event)
        if self._inboxes or outputs.load.free_blocks < outputs.load.total_blocks:
            self.quiescent.clear()
        else:
            self.quiescent.set()

    async def _send_keepalives(self) -> None:
        while True:
            await asyncio.sleep(KEEPALIVE_S)
            for inbox in self._inboxes.values():
                inbox.keep_alive(alive=self.alive)

    async def _watch(self) -> None:
        status = await self.process.wait()
        raise EngineDied(f"the engine process ended with status {status}")

    def _put_to_all(self, event: Event) -> None:
        for inbox in self._inboxes.values():
            inbox.put(event)


async def _vectors(inbox: LegInbox, running: set[RequestId], rid: RequestId) -> PooledEvent:
    """Wait for one pooling request and take it out of `running`; raises StreamFailed."""
    while True:
        event = await inbox.get()
        if isinstance(event, FailedEvent | PooledEvent):
            running.discard(rid)
        if isinstance(event, FailedEvent):
            raise _failure(event)
        if isinstance(event, PooledEvent):
            return event


def _failure(event: FailedEvent) -> StreamFailed:
    if event.leaving:
        return NodeLeaving(event.reason)
    if event.retryable:
        return StreamFailed(event.reason)
    return RequestRefused(event.reason, event.param)


async def _until_ready(process: Process, socket: zmq.asyncio.Socket) -> EngineReady:
    ended = asyncio.create_task(process.wait())
    received = asyncio.ensure_future(socket.recv())
    await asyncio.wait([ended, received], return_when=asyncio.FIRST_COMPLETED)
    if not received.done():
        received.cancel()
        raise EngineDied(f"the engine process ended with status {ended.result()} while loading")
    ended.cancel()
    message = decode_from_engine(received.result())
    if isinstance(message, EngineStartFailed):
        raise EngineDied(message.reason)
    assert isinstance(message, EngineReady)
    return message
