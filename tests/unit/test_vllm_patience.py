"""Nodes of vLLM may be silent for as long as they prefill; ours say something every 2 s.

Neither may drip: bytes that complete nothing are silence.
"""

import asyncio
import errno
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from api.generator import WHOLE, Leg
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import PoolingRequest, Request, RequestId
from proxy.errors import Cause, NodeFailed
from proxy.nodes.client import PART_S, POOLING_S, HttpNodeClient
from proxy.nodes.connection import MOST_UNREAD, NodeConnection
from proxy.nodes.connection_errors import ConnectionClosed, SilenceTimeout
from proxy.nodes.connection_pool import ConnectionPool
from proxy.nodes.failures import failure_of_error
from proxy.nodes.patience import PART_BYTES, ReplyTimeouts
from tests.fakes.raw_http import END, SSE, chunk

REQUEST = Request(RequestId("r"), (1, 2, 3))
POOLING = PoolingRequest(RequestId("r"), (1, 2, 3))
UNBOUNDED = ReplyTimeouts(math.inf, math.inf, PART_S)
DAY_S = 86_400.0
PIECE = 32 << 10
HEAD = b"HTTP/1.1 200 OK\r\nX-Long: "
JSON = HEAD + b"\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n"
EVENT = chunk(b"data: 1234567890\n\n")
VLLM = Node(Registration(Role.PREFILL, "h:1", "", model="m"), 0)
OURS = Node(Registration(Role.PREFILL, "h:1", "", "one", model="m"), 0)


class Noting(ConnectionPool):
    """Notes how patient each call is, and reaches nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = list[ReplyTimeouts]()

    async def call(self, *given: Any) -> Any:  # noqa: ANN401
        self.noted += [one for one in given if isinstance(one, ReplyTimeouts)]
        raise ConnectionClosed("nobody is there")


@dataclass
class Clock:
    """A loop of which a line uses the time and the timers only."""

    now: float = 0.0
    timers: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, told: Callable[[], None]) -> asyncio.TimerHandle:
        self.timers.append((self.now + seconds, told))
        return asyncio.get_running_loop().call_later(DAY_S, told)

    def go_on(self, seconds: float) -> None:
        """Rings what is due by then."""
        self.now += seconds
        due = [told for at, told in self.timers if at <= self.now]
        self.timers = [one for one in self.timers if one[0] > self.now]
        for told in due:
            told()


class Wire(asyncio.Transport):
    """Takes all, and sends nothing."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def asked(patience: ReplyTimeouts) -> tuple[NodeConnection, Clock]:
    line, clock = NodeConnection("h:1", lambda line: None), Clock()
    line._loop = clock  # type: ignore[assignment]
    line.connection_made(Wire())
    line.send(b"request", patience)
    return line, clock


def look(line: NodeConnection) -> None:
    """Read what there is."""
    if line.head_arrived():
        line.read_available()


@pytest.mark.parametrize(
    ("told_s", "expected"), [(None, UNBOUNDED), (5.0, ReplyTimeouts(5.0, 5.0, PART_S))]
)
@pytest.mark.parametrize("leg", [WHOLE, Leg(hold=True)])
async def test_a_node_of_vllm_may_be_silent_for_any_time_unless_a_bound_is_told(
    leg: Leg, told_s: float | None, expected: ReplyTimeouts
) -> None:
    lines = Noting()
    client = HttpNodeClient(lines, foreign_silence_s=told_s)
    with pytest.raises(NodeFailed):
        async for _ in client.generate(VLLM, REQUEST, leg):
            pass
    with pytest.raises(NodeFailed):
        await client.pool(VLLM, [POOLING])
    assert lines.noted == [expected, expected]


async def test_one_of_ours_that_pools_has_a_bound_whatever_is_told_of_others() -> None:
    lines = Noting()
    with pytest.raises(NodeFailed):
        await HttpNodeClient(lines).pool(OURS, [POOLING])
    assert lines.noted == [ReplyTimeouts(POOLING_S, POOLING_S)]


async def test_without_a_bound_there_is_time_before_the_head_and_before_each_event() -> None:
    line, clock = asked(UNBOUNDED)
    heard = b""
    for data in (SSE, EVENT, EVENT, EVENT + END):
        clock.go_on(DAY_S)
        line.data_received(data)
        clock.go_on(PART_S + 1)
        if part := line.read_available():
            line.note_progress()
            heard += part
    assert heard == b"data: 1234567890\n\n" * 3
    assert not clock.timers


async def test_without_a_bound_what_has_begun_has_one() -> None:
    for begun in (HEAD, SSE + chunk(b"data: 12345678901"), JSON + b'{"choices": [{"toke'):
        line, clock = asked(UNBOUNDED)
        clock.go_on(DAY_S)
        line.data_received(begun)
        look(line)
        clock.go_on(PART_S - 1)
        assert not line.lost
        clock.go_on(1)
        with pytest.raises(SilenceTimeout):
            look(line)


@pytest.mark.parametrize("patience", [UNBOUNDED, ReplyTimeouts(20.0, 20.0)])
@pytest.mark.parametrize("begun", [HEAD, SSE, JSON, SSE + EVENT])
async def test_a_drip_is_silence(begun: bytes, patience: ReplyTimeouts) -> None:
    """A byte each second, which ends nothing: of a head, an event or a body."""
    line, clock = asked(patience)
    line.data_received(begun)
    framed = begun.startswith(SSE)
    for _ in range(100):
        clock.go_on(1)
        if line.lost:
            break
        line.data_received(chunk(b"x") if framed else b"x")
        look(line)
    with pytest.raises(SilenceTimeout):
        look(line)


async def test_nothing_of_a_chunk_but_its_head_is_silence() -> None:
    line, clock = asked(UNBOUNDED)
    line.data_received(SSE + b"5;")
    for _ in range(100):
        clock.go_on(1)
        if not line.lost:
            line.data_received(b"x")
    with pytest.raises(SilenceTimeout):
        line.read_available()


async def test_a_large_answer_may_take_long_if_much_of_it_comes() -> None:
    line, clock = asked(UNBOUNDED)
    line.data_received(JSON)
    for _ in range(10):
        clock.go_on(PART_S - 1)
        for _ in range(PART_BYTES // PIECE):
            line.data_received(b" " * PIECE)
            assert line.read_available()
    assert not line.lost
    clock.go_on(PART_S * 2)
    assert clock.timers == []
    assert not line.lost, "all of it counted, so nothing more had begun"


async def test_who_does_not_read_blames_nobody() -> None:
    """A client that reads slowly: whole events wait here, and the node is at work."""
    line, clock = asked(UNBOUNDED)
    line.data_received(SSE + EVENT)
    clock.go_on(PART_S + 1)
    line.data_received(EVENT)
    clock.go_on(PART_S + 1)
    assert line.read_available()
    line.note_progress()
    clock.go_on(DAY_S)
    assert line.read_available() is None


async def test_while_reading_is_paused_nobody_is_silent() -> None:
    line, clock = asked(ReplyTimeouts(5.0, 5.0))
    line.data_received(SSE + chunk(b"x" * (MOST_UNREAD + 1)))
    clock.go_on(4)
    clock.go_on(4)
    assert line.read_available()
    clock.go_on(4)
    assert line.read_available()
    assert line.read_available() is None
    clock.go_on(1.5)
    with pytest.raises(SilenceTimeout):
        line.read_available()


async def test_a_bound_before_the_head_alone_ends_with_it() -> None:
    line, clock = asked(ReplyTimeouts(5.0, math.inf))
    line.data_received(SSE)
    clock.go_on(DAY_S)
    assert line.read_available() is None
    assert clock.timers == []


async def test_a_bound_after_the_head_alone_begins_with_it() -> None:
    line, clock = asked(ReplyTimeouts(math.inf, 5.0))
    clock.go_on(DAY_S)
    line.data_received(SSE)
    clock.go_on(4.9)
    assert line.read_available() is None
    clock.go_on(0.2)
    with pytest.raises(SilenceTimeout):
        line.read_available()


async def test_a_host_that_the_kernel_finds_gone_has_hung_up_and_is_no_silent_one() -> None:
    line, _ = asked(UNBOUNDED)
    line.connection_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
    with pytest.raises(ConnectionClosed, match="timed out") as hung_up:
        line.head_arrived()
    failure = failure_of_error(VLLM, hung_up.value)
    assert isinstance(failure, NodeFailed)
    assert (failure.cause, failure.retryable) == (Cause.BROKEN, True)
