"""The proxy's ear: a ZMQ ROUTER to which every node says once a second that it is there."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from discovery.address import format_address
from discovery.answers import ANSWER, Answers
from discovery.endings import Endings
from discovery.errors import MalformedRegistration
from discovery.intake import Intake, Joined
from discovery.registration import DEFAULT_PORT, State
from discovery.registry import Node, Registry
from discovery.signature import Verifier

LOOK_S = 0.5  # how often somebody looks for who went quiet
GATHER_S = 0.02  # after a message, for more of them: waking up costs more than reading one
MOST_AT_ONCE = 64  # messages are read before others have a turn
LARGEST_READ = 2 << 20  # more than may be said, so that it can be counted; ZMQ cuts beyond
MOST_UNREAD = 16  # messages of one sender
HANDSHAKE_S = 5.0  # longer than any healthy one, and ZMQ ends the connection
WATCH = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
MAPPED = "::ffff:"  # an IPv4 peer of an IPv6 socket

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Listener:
    """Feeds the registry while `run` runs."""

    intake: Intake
    port: int
    look_s: float
    clock: Callable[[], float]
    _context: zmq.Context[zmq.Socket[bytes]]
    _router: zmq.Socket[bytes]
    _endings: Endings
    _answers: Answers = field(default_factory=Answers)

    @classmethod
    def bind(
        cls,
        registry: Registry,
        host: str,
        port: int = DEFAULT_PORT,
        *,
        cluster_key: bytes | None = None,
        look_s: float = LOOK_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> "Listener":
        """Open the socket; port 0 lets the system pick, and `port` tells which it was."""
        context = zmq.Context[zmq.Socket[bytes]]()
        router = context.socket(zmq.ROUTER)
        try:
            router.setsockopt(zmq.HANDSHAKE_IVL, int(handshake_s * 1000))
            bound = _bind(router, host, port)
            endings = Endings.of(router)
        except BaseException:
            router.close(linger=0)
            context.term()
            raise
        intake = Intake(registry, Verifier(cluster_key) if cluster_key else None)
        return cls(intake, bound, look_s, time.monotonic, context, router, endings)

    async def run(self) -> None:
        """Listen, and forget who went quiet, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._forget())

    def close(self) -> None:
        """Give the port back; whoever binds closes."""
        self._endings.close()
        self._router.close(linger=0)
        self._context.term()

    async def _listen(self) -> None:
        """A message that comes alone is heard at once, and many are heard together."""
        while True:
            ended = self._endings.read(MOST_AT_ONCE)  # before the messages, some may be theirs
            heard = self._drain()
            if ended and heard < MOST_AT_ONCE:
                self._judge()
            if MOST_AT_ONCE in (heard, ended):
                await asyncio.sleep(0)
            elif heard or ended:
                await asyncio.sleep(GATHER_S)
            else:
                await self._told()

    async def _told(self) -> None:
        """Until there may be messages. ZMQ tells only once, so all have to be read before."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        messages = self._router.getsockopt(zmq.FD)
        assert isinstance(messages, int)
        descriptors = messages, self._endings.descriptor
        for descriptor in descriptors:
            loop.add_reader(descriptor, told.set)
        try:
            await told.wait()
        finally:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def _drain(self) -> int:
        """How many messages were there; so many at most."""
        for heard in range(MOST_AT_ONCE):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return heard
            self._endings.spoke(frames)
            self._hear(frames)
        return MOST_AT_ONCE

    def _judge(self) -> None:
        if (wordless := self._endings.judge()) and self.intake.pass_over(wordless):
            logger.warning(
                "a connection ended before a message came by it: it was not ZMQ's, its "
                "handshake did not end, or it sent over %d bytes; more are only counted",
                LARGEST_READ,
            )

    def _hear(self, frames: list[zmq.Frame]) -> None:
        now, wall_time = self.clock(), time.time()
        try:
            payload = [frame.bytes for frame in frames]
            taken = self.intake.take(payload, now=now, wall_time=wall_time)
        except MalformedRegistration as error:
            sender = _address_of(frames[-1])
            if self.intake.blame(f"{sender} {error.reason}"):
                logger.warning("dropped a registration from %s: %s", sender, error)
        else:
            if taken.ours and self._answers.due(payload[0]):
                self._router.send_multipart([payload[0], ANSWER], zmq.NOBLOCK)
            if taken.joined:
                log_joined(taken.joined)

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(self.look_s)
            for node in self.intake.registry.expire(now=self.clock()):
                silent = node.registration.state is State.READY
                why = "silent" if silent else "it had said that it takes no more work"
                logger.info("%s left: %s", describe(node), why)


def describe(node: Node) -> str:
    """A node in a log line."""
    said = node.registration
    return (
        f"{said.type.name.lower()} node {said.http_address} "
        f"(node_id {said.node_id}, model {said.model})"
    )


def log_joined(joined: Joined) -> None:
    """One line for a node that is new, and one if nobody can work with it."""
    if joined.replaced and joined.replaced.node_id == joined.node.node_id:
        logger.info("%s has changed its role", describe(joined.node))
    elif joined.replaced:
        logger.info("%s replaces %s", describe(joined.node), describe(joined.replaced))
    else:
        logger.info("%s joined", describe(joined.node))
    if joined.misfit:
        logger.warning("%s fits nobody: %s", describe(joined.node), joined.misfit)


def _bind(router: zmq.Socket[bytes], host: str, port: int) -> int:
    """A name is looked up first, as ZMQ binds to addresses only."""
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.IPV6, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a restarted vLLM node keeps its identity
    router.setsockopt(zmq.MAXMSGSIZE, LARGEST_READ)
    router.setsockopt(zmq.RCVHWM, MOST_UNREAD)
    for option, value in WATCH.items():  # else connections of hosts that are gone stay for good
        router.setsockopt(option, value)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    address = str(found[0][4][0])
    router.bind(f"tcp://{format_address(address, port or '*')}")
    endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return int(endpoint.rstrip(b"\0").rpartition(b":")[2])


def _address_of(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("Peer-Address")).removeprefix(MAPPED)
    except zmq.ZMQError:
        return "somebody"
