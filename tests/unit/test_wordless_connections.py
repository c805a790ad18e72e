"""In which order endings and messages are read, over sockets that say what they are told to."""

import asyncio
import os
import struct
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import zmq

from discovery.intake import Intake
from discovery.listener import LOOK_S, MOST_AT_ONCE, Listener
from discovery.registration import Registration, Role, pack, to_map
from discovery.registry import Registry
from discovery.replies import REPLY
from discovery.wordless_connections import WordlessConnections
from tests.fakes.waiting import comes_true

OURS, OTHER = 7, 8
GOOD = pack(to_map(Registration(Role.DECODE, "h:1", "h:2", "d0")))


@dataclass(frozen=True)
class Part:
    """A frame that came by a connection."""

    bytes: bytes
    descriptor: int

    def get(self, option: int | str) -> int:
        if option != zmq.SRCFD:
            raise zmq.ZMQError
        return self.descriptor


@dataclass
class Script:
    """A socket that always says that there may be something, and what comes of it."""

    waiting: list[Any] = field(default_factory=list)
    look: Callable[[], object] = bool
    answered: list[list[bytes]] = field(default_factory=list)
    ready: int = field(default_factory=lambda: os.eventfd(1))

    def recv_multipart(self, flags: int, *, copy: bool = True) -> Any:  # noqa: ANN401
        assert flags == zmq.NOBLOCK
        if not self.waiting:
            self.look()
            raise zmq.Again
        return self.waiting.pop(0)

    def send_multipart(self, frames: list[bytes], flags: int) -> None:
        assert flags == zmq.NOBLOCK
        self.answered.append(frames)

    def getsockopt(self, option: int) -> int:
        assert option == zmq.FD
        return self.ready

    def close(self, *, linger: int) -> None:
        assert linger == 0
        os.close(self.ready)


@asynccontextmanager
async def hearing(messages: Any, endings: Any) -> AsyncGenerator[Registry]:  # noqa: ANN401
    registry, context = Registry(), zmq.Context[zmq.Socket[bytes]]()
    told = Listener(
        Intake(registry),
        0,
        LOOK_S,
        time.monotonic,
        context,
        messages,
        WordlessConnections(endings),
    )
    running = asyncio.create_task(told.run())
    try:
        yield registry
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        told.close()


def message(speaker: bytes, descriptor: int, payload: bytes = GOOD) -> Sequence[Part]:
    return [Part(speaker, descriptor), Part(payload, descriptor)]


def ending(descriptor: int) -> Sequence[bytes]:
    return [struct.pack("=hi", zmq.EVENT_DISCONNECTED, descriptor), b"tcp://here"]


async def test_a_node_that_speaks_and_leaves_after_a_look_at_messages_was_heard() -> None:
    """Endings are read first: what came before them is there then."""
    messages, endings = Script(), Script()

    def speak_and_leave() -> None:
        messages.look = bool
        messages.waiting.append(message(b"us", OURS))
        endings.waiting.append(ending(OURS))

    messages.look = speak_and_leave
    async with hearing(messages, endings) as registry:
        await comes_true(lambda: registry.at("h:1") and not endings.waiting)
        assert not registry.refused


async def test_a_node_of_vllm_is_not_answered() -> None:
    """It never reads, and what nobody reads is kept."""
    bare = pack({"type": "P", "http_address": "h:2", "zmq_address": "h:3"})
    messages, endings = Script([message(b"vllm", OTHER, bare), message(b"us", OURS)]), Script()
    async with hearing(messages, endings) as registry:
        await comes_true(lambda: registry.at("h:1") and registry.at("h:2"))
    assert messages.answered == [[b"us", REPLY]]


async def test_an_ending_waits_for_all_messages_to_be_read() -> None:
    messages, endings = Script(), Script([ending(OURS)])
    messages.waiting = [message(b"other", OTHER, b"") for _ in range(2 * MOST_AT_ONCE)]
    messages.waiting.append(message(b"us", OURS))
    async with hearing(messages, endings) as registry:
        await comes_true(lambda: registry.at("h:1"))
        assert registry.refused == {"malformed": 2 * MOST_AT_ONCE}


async def test_two_of_one_descriptor_have_both_spoken_and_a_third_has_not() -> None:
    messages, endings = Script(), Script([ending(OURS)])
    messages.waiting = [message(one, OURS) for one in (b"one", b"one", b"two", b"two")]
    async with hearing(messages, endings) as registry:
        await comes_true(lambda: not endings.waiting and not messages.waiting)
        endings.waiting.append(ending(OURS))
        await comes_true(lambda: not endings.waiting)
        assert not registry.refused
        endings.waiting.append(ending(OURS))
        await comes_true(lambda: registry.refused)
        assert registry.refused == {"wordless": 1}
