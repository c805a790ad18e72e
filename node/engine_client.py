"""The door's side of the engine process: starts it, watches it, and has a stream per leg."""

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
    EndEvent,
    Event,
    FailedEvent,
    Leaving,
    Leg,
    PooledEvent,
    RequestRefused,
    StreamFailed,
    Tap,
    TokenEvent,
)
from engine.api import EngineLoad
from engine.request import PoolingRequest, Request, RequestId
from node.failures import first_of
from node.inbox import Inbox
from node.ipc import (
    NO_LOAD,
    Abort,
    EngineJob,
    News,
    Pool,
    Ready,
    Refused,
    Renice,
    Submit,
    ToEngine,
    decode_to_door,
    encode,
)

ENGINE_PROCESS = "node.engine_process"
SETTINGS = "PDSERVE_"  # what variables begin with
QUIET_S = 5.0  # an engine that says nothing for so long is not healthy
LIFE_SIGN_S = 2.0
LATE_S = 2.0  # nor is one whose hand-overs nobody has looked after for so long
# KV that was to come is still on offer
STOPPING = FailedEvent("the node is stopping", retryable=True, parked=True, leaving=True)


class EngineDied(RuntimeError):
    """The engine process ended, or never became ready; the text says why."""


@dataclass(slots=True)
class EngineClient:
    """A Generator over one engine process; owns the process from `start` to `stop`.

    Closing a stream aborts its leg, unless it has said all it has to say. `calm` is set while
    nobody listens and no KV waits to be fetched.
    """

    process: Process
    socket: zmq.asyncio.Socket
    ready: Ready
    on_news: Callable[[News], None] = lambda news: None
    load: EngineLoad = NO_LOAD
    heard_at: float = field(default_factory=time.monotonic)
    sweep_late_s: float = 0.0
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    _inboxes: dict[RequestId, Inbox] = field(default_factory=dict)
    _legs: int = 0
    _dismissed: bool = False

    @classmethod
    async def start(cls, job: EngineJob) -> "EngineClient":
        """Start the process and wait until its model is loaded; raises EngineDied."""
        socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind(job.ipc_address)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", ENGINE_PROCESS), stdin=PIPE, env=_environment()
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        ready = await _until_ready(process, socket)
        return cls(process, socket, ready, load=ready.load)

    @property
    def alive(self) -> bool:
        """Whether new work is in good hands here."""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Why it is not: the process is gone or silent, or its hand-overs are stuck."""
        silent_s = time.monotonic() - self.heard_at
        if self.process.returncode is not None or silent_s >= QUIET_S:
            return "the engine process does not answer"
        if self.sweep_late_s >= LATE_S:
            return f"hand-overs are stuck: leases are seen to {self.sweep_late_s:.1f} s late"
        return None

    async def run(self) -> None:
        """Hand out news until the process ends; raises EngineDied then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._pulse())
                tasks.create_task(self._watch())
        except BaseExceptionGroup as failures:
            raise first_of(failures, EngineDied) or failures from None
        finally:
            self._tell_all(FailedEvent("the engine process died", retryable=True, parked=True))

    def dismiss(self) -> None:
        """Whoever still listens goes elsewhere, and who comes yet: his leg was on its way."""
        self._dismissed = True
        self._tell_all(STOPPING)

    @property
    def num_legs(self) -> int:
        """How many are listened to."""
        return len(self._inboxes)

    def hand_over(self) -> None:
        """Decode legs whose drivers can go on elsewhere are sent there, and end here."""
        reason = "the node changes its role"
        gone = FailedEvent(reason, retryable=True, parked=True, leaving=True)
        for inbox in self._inboxes.values():
            if inbox.movable and not inbox.moved:
                inbox.moved = True
                inbox.put(gone)

    async def renice(self, niceness: int) -> None:
        """Have the process give way to others by so much more than this one does."""
        await self._send(Renice(niceness))

    async def stop(self) -> None:
        """End the process, also a stopped one; what it holds for others is given up."""
        if self.process.returncode is None:
            self.process.kill()  # it has nothing left to do that SIGTERM would let it do
            await self.process.wait()
        self.socket.close(linger=0)

    async def events(self, request: Request, leg: Leg = WHOLE) -> AsyncGenerator[Event | None]:
        """One leg's events as the engine says them, a FailedEvent included.

        None every now and then means that there is none, and that the engine is alive.
        """
        rid, inbox = self._open(request.request_id)
        inbox.movable, over = leg.keep_open and leg.ticket is not None, False
        unique = msgspec.structs.replace(request, request_id=rid)
        try:
            await self._send(Submit.of(unique, leg, time.monotonic()))
            while not over:
                event = await inbox.get()
                assert not isinstance(event, PooledEvent)
                over = event is not None and _is_last(event, leg)
                yield event
        finally:
            del self._inboxes[rid]
            if not over or inbox.moved:
                await self._send(Abort(rid))

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        """The same for a text door: failure is an exception."""
        async with aclosing(self.events(request, leg)) as events:
            async for event in events:
                if isinstance(event, FailedEvent):
                    raise _failure(event)
                if event is not None:
                    yield event

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        """All of them at once; see Embedder."""
        legs = [(self._open(one.request_id), one) for one in requests]
        running = {rid for (rid, _), _ in legs}
        try:
            for (rid, _), one in legs:
                unique = msgspec.structs.replace(one, request_id=rid)
                await self._send(Pool(unique, time.monotonic()))
            pooled = list[PooledEvent]()
            for (rid, inbox), _ in legs:
                pooled.append(await _vectors(inbox, running, rid))
            return pooled
        finally:
            for (rid, _), _ in legs:
                del self._inboxes[rid]
            for rid in running:
                await self._send(Abort(rid))

    def _open(self, request_id: RequestId) -> tuple[RequestId, Inbox]:
        """A name that is used once only, and what is heard under it."""
        self._legs += 1
        rid, inbox = RequestId(f"{request_id}~{self._legs}"), Inbox()
        self._inboxes[rid] = inbox
        self.calm.clear()
        if self._dismissed:
            inbox.put(STOPPING)
        return rid, inbox

    async def _send(self, message: ToEngine) -> None:
        if self.process.returncode is None:
            await self.socket.send(encode(message))

    async def _read(self) -> None:
        while True:
            news = decode_to_door(await self.socket.recv())
            if isinstance(news, News):
                self._book(news)

    def _book(self, news: News) -> None:
        self.load, self.heard_at = news.load, time.monotonic()
        self.sweep_late_s = news.sweep_late_s
        self.on_news(news)
        for rid, event in news.events:
            if inbox := self._inboxes.get(rid):
                inbox.put(event)
        if self._inboxes or news.load.free_blocks < news.load.total_blocks:
            self.calm.clear()
        else:
            self.calm.set()

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(LIFE_SIGN_S)
            for inbox in self._inboxes.values():
                inbox.pulse(alive=self.alive)

    async def _watch(self) -> None:
        status = await self.process.wait()
        raise EngineDied(f"the engine process ended with status {status}")

    def _tell_all(self, event: Event) -> None:
        for inbox in self._inboxes.values():
            inbox.put(event)


def _is_last(event: Event, leg: Leg) -> bool:
    """A hold leg that nobody keeps open is over with its token; its lease goes on."""
    if isinstance(event, TokenEvent):
        return not leg.keep_open if leg.hold else event.finish is not None
    return isinstance(event, FailedEvent | EndEvent)


async def _vectors(inbox: Inbox, running: set[RequestId], rid: RequestId) -> PooledEvent:
    """Read to the end of one pooling request, which does not run then; raises StreamFailed."""
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
        return Leaving(event.reason)
    if event.retryable:
        return StreamFailed(event.reason)
    return RequestRefused(event.reason, event.param)


async def _until_ready(process: Process, socket: zmq.asyncio.Socket) -> Ready:
    ended = asyncio.create_task(process.wait())
    said = asyncio.ensure_future(socket.recv())
    await asyncio.wait([ended, said], return_when=asyncio.FIRST_COMPLETED)
    if not said.done():
        said.cancel()
        raise EngineDied(f"the engine process ended with status {ended.result()} while loading")
    ended.cancel()
    message = decode_to_door(said.result())
    if isinstance(message, Refused):
        raise EngineDied(message.reason)
    assert isinstance(message, Ready)
    return message


def _environment() -> dict[str, str]:
    """Without our settings, which the job says, and keys that compilers and ranks would see."""
    return {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS)}
