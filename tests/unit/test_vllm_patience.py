"""Nodes of vLLM may be silent for as long as they prefill; ours say something every 2 s."""

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
from proxy.nodes.client import POOLING_S, HttpNodeClient
from proxy.nodes.connection import NodeConnection, ReplyTimeouts
from proxy.nodes.connection_errors import ConnectionClosed, SilenceTimeout
from proxy.nodes.connection_pool import ConnectionPool
from proxy.nodes.failures import failure_of_error
from tests.fakes.raw_http import END, SSE, chunk

REQUEST = Request(RequestId("r"), (1, 2, 3))
POOLING = PoolingRequest(RequestId("r"), (1, 2, 3))
UNBOUNDED = ReplyTimeouts(math.inf, math.inf)
DAY_S = 86_400.0
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

    def close(self) -> None:
        pass


def asked(patience: ReplyTimeouts) -> tuple[NodeConnection, Clock]:
    line, clock = NodeConnection("h:1", lambda line: None), Clock()
    line._loop = clock  # type: ignore[assignment]
    line.connection_made(Wire())
    line.send(b"request", patience)
    return line, clock


@pytest.mark.parametrize(
    ("told_s", "expected"), [(None, UNBOUNDED), (5.0, ReplyTimeouts(5.0, 5.0))]
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


async def test_without_a_bound_no_timer_is_set_before_the_head_or_after_it() -> None:
    line, clock = asked(UNBOUNDED)
    for data in (SSE, chunk(b"one"), chunk(b"two") + END):
        assert clock.timers == []
        clock.go_on(DAY_S)
        line.data_received(data)
    assert clock.timers == []
    assert await line.read() == b"onetwo"


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
