"""A prefill and a decode node that answer from a script: no model, and next to no work.

Both are in this process, at a port each, and announce themselves as real ones do. They speak
the node call over plain sockets: a prefill leg gives its ticket at once and its token a
little later, and ends when the decode leg of that ticket has begun; decode legs get `burst`
frames in one write with every step, all of them with the same step, as in a batch. A call
without a ticket is answered whole. `POST /script` sets the step, `GET /script` tells the
tokens that decode legs have said.
"""

import argparse
import asyncio
import signal
import uuid
from contextlib import closing
from dataclasses import dataclass, field
from typing import cast

import msgspec
import uvloop

from api.generated import DONE, encode_event
from api.generator import PromptEvent, StageEvent, TicketEvent, TokenEvent
from bench.proxy.answers import HERE, SCRIPT, NodeCounts, Script
from discovery.announcer import Announcer
from discovery.lifeline import end_with, report_to_starter
from discovery.registration import Load, Registration, Role
from engine.request import FinishReason, RequestId
from kv_transfer.ticket import KvTicket

PREFILL_S = 0.002
BACKLOG = 4096
ANY = 987_654_321  # stands for a token in a frame that is made once
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class _Sampling(msgspec.Struct):
    max_tokens: int = 16


class _Params(msgspec.Struct):
    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_request_id: str | None = None


class _Call(msgspec.Struct):
    """What of a node call matters here; the prompt is not even read."""

    sampling_params: _Sampling
    request_id: str | None = None
    kv_transfer_params: _Params | None = None


@dataclass(slots=True)
class ScriptedNodes:
    """What all connections share: the script, and who is being answered."""

    tokens: tuple[int, ...]
    script: Script = field(default_factory=Script)
    held: "dict[str, ScriptedConnection]" = field(default_factory=dict)
    streams: "dict[ScriptedConnection, Stream]" = field(default_factory=dict)
    said: int = 0

    async def run(self) -> None:
        """One step after another, each for all streams."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            due = max(due + self.script.step_s, clock())
            await asyncio.sleep(due - clock())
            for door, stream in list(self.streams.items()):
                frames, more = stream.more(self.script.burst)
                self.said += len(frames)
                door.say(*frames, *(() if more else stream.end()))
                if not more:
                    door.finish()
                    del self.streams[door]


@dataclass(slots=True)
class Stream:
    """One decode leg; frames are made by filling in a token."""

    request_id: RequestId
    tokens: tuple[int, ...]
    wanted: int
    place: int = 0
    head: bytes = b""
    tail: bytes = b""

    def __post_init__(self) -> None:
        frame = encode_event(self.request_id, TokenEvent((ANY,)))
        self.head, self.tail = frame.split(b"%d" % ANY)

    def more(self, burst: int) -> tuple[list[bytes], bool]:
        """The frames of one step, and whether there are more."""
        until = min(self.place + burst, self.wanted)
        frames = [self._frame(place) for place in range(self.place, until)]
        self.place = until
        return frames, until < self.wanted

    def end(self) -> tuple[bytes, ...]:
        """Behind the last token."""
        return (DONE,)

    def _frame(self, place: int) -> bytes:
        token = self.tokens[place % len(self.tokens)]
        if place == self.wanted - 1:
            stage = encode_event(self.request_id, StageEvent("decode", 1.0))
            last = TokenEvent((token,), FinishReason.LENGTH)
            return stage + encode_event(self.request_id, last)
        return b"%b%d%b" % (self.head, token, self.tail)


class ScriptedConnection(asyncio.Protocol):
    """One connection: one call after another."""

    def __init__(self, stage: ScriptedNodes) -> None:
        self.stage, self.buffer, self.ticket = stage, b"", ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol: an abort, if it answers."""
        self.stage.streams.pop(self, None)
        self.stage.held.pop(self.ticket, None)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.buffer += data
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        _, _, after = head.lower().partition(b"content-length:")
        length = int(after.partition(b"\r\n")[0] or 0)
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        self._answer(head, rest[:length])

    def say(self, *frames: bytes) -> None:
        """In one write, and one chunk."""
        if frames and not self.transport.is_closing():
            body = b"".join(frames)
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def finish(self) -> None:
        """The end of one answer."""
        if not self.transport.is_closing():
            self.transport.write(LAST)

    def _answer(self, head: bytes, body: bytes) -> None:
        if SCRIPT.encode() in head:
            if body:
                self.stage.script = msgspec.json.decode(body, type=Script)
            told = msgspec.json.encode(NodeCounts(self.stage.said))
            self.transport.write(PLAIN % (len(told), told))
            return
        call = msgspec.json.decode(body, type=_Call)
        params = call.kv_transfer_params or _Params()
        request_id = RequestId(call.request_id or uuid.uuid4().hex)
        self.transport.write(HEAD)
        if params.do_remote_decode:
            self._prefill(request_id)
        elif params.do_remote_prefill:
            self._decode(request_id, call, params.remote_request_id or "")
        else:
            start = self.stage.tokens, call.sampling_params.max_tokens
            asyncio.get_running_loop().call_later(PREFILL_S, self._whole, request_id, *start)

    def _prefill(self, request_id: RequestId) -> None:
        self.ticket = uuid.uuid4().hex
        self.stage.held[self.ticket] = self
        ticket = KvTicket(self.ticket, "scripted", HERE, 1, "script")
        self.say(
            encode_event(request_id, StageEvent("queue", 0.0)),
            encode_event(request_id, TicketEvent(ticket)),
        )
        asyncio.get_running_loop().call_later(PREFILL_S, self._first, request_id, ticket)

    def _first(self, request_id: RequestId, ticket: KvTicket) -> None:
        self.say(
            encode_event(request_id, PromptEvent(0)),
            encode_event(request_id, StageEvent("prefill", PREFILL_S)),
            encode_event(request_id, TokenEvent((self.stage.tokens[0],)), ticket),
        )

    def _decode(self, request_id: RequestId, call: _Call, ticket: str) -> None:
        self.say(encode_event(request_id, StageEvent("reserve", 0.0)))
        wanted = call.sampling_params.max_tokens
        self.stage.streams[self] = Stream(request_id, self.stage.tokens, wanted)
        loop = asyncio.get_running_loop()
        loop.call_later(PREFILL_S, self._settle, request_id, ticket)

    def _settle(self, request_id: RequestId, ticket: str) -> None:
        """The KV has arrived, and prefill's leg ends."""
        self.say(encode_event(request_id, StageEvent("transfer", PREFILL_S)))
        if prefill := self.stage.held.pop(ticket, None):
            prefill.say(DONE)
            prefill.finish()

    def _whole(self, request_id: RequestId, tokens: tuple[int, ...], wanted: int) -> None:
        if self.transport.is_closing():
            return  # it has left before its first token
        stream = Stream(request_id, tokens, wanted)
        frames, _ = stream.more(1)
        self.say(encode_event(request_id, PromptEvent(0)), *frames)
        self.stage.streams[self] = stream


def main() -> None:
    """Run both nodes until the starter is gone, or says so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--proxy", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--supervisor-fd", type=int, required=True)
    options = parser.parse_args()
    end_with(options.supervisor_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    tokens = tuple(int(one) for one in options.tokens.split(","))
    uvloop.run(_run(options.proxy, options.model, tokens, options.supervisor_fd))


async def _run(proxy: str, model: str, tokens: tuple[int, ...], supervisor: int) -> None:
    stage = ScriptedNodes(tokens)
    async with asyncio.TaskGroup() as tasks:
        prefill = await _open(Role.PREFILL, stage, model)
        decode = await _open(Role.DECODE, stage, model)
        for said in (prefill, decode):
            tasks.create_task(_announce(proxy, said))
        tasks.create_task(stage.run())
        report_to_starter(
            supervisor, http_address=decode.http_address, prefill=prefill.http_address
        )


async def _open(role: Role, stage: ScriptedNodes, model: str) -> Registration:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: ScriptedConnection(stage), HERE, 0, backlog=BACKLOG
    )
    address = f"{HERE}:{server.sockets[0].getsockname()[1]}"
    return Registration(
        role,
        address,
        address,
        node_id=uuid.uuid4().hex,
        model=model,
        fingerprint="script",
        max_model_len=1 << 20,
        load=Load(free_blocks=1 << 20, total_blocks=1 << 20),
    )


async def _announce(proxy: str, said: Registration) -> None:
    with closing(Announcer.connect([proxy], lambda: said)) as voice:
        await voice.run()


if __name__ == "__main__":
    main()
