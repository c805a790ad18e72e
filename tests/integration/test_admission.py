"""The gate over real HTTP: who waits, who is refused, and what everybody leaves behind."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from quart import Quart

from api.gate import AdmissionRequest
from api.generator import WHOLE, Event, Leg, Tap, TokenEvent
from api.routes import openai_routes
from engine.request import FinishReason, Request
from proxy.admission.admission import Admission
from proxy.admission.gate import AdmissionGate
from proxy.admission.limits import KeyLimits
from proxy.admission.pools import NodeCounts
from proxy.timeline.exchange import HttpExchange, current
from tests.fakes.limits import limits
from tests.fakes.serving import serving
from tests.fakes.text import served
from tests.fakes.waiting import comes_true

PATIENCE_S = 60
BEGUN_S = 1.0  # a stream has begun by then
COMPLETIONS = "/v1/completions"


@dataclass
class Held:
    """A Generator that says one token to each, and no more before it is told to.

    Not even that one before a prompt `ran`, of those of `slow` tokens.
    """

    begun: list[int] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    ran: asyncio.Event = field(default_factory=asyncio.Event)
    slow: int | None = None

    def __post_init__(self) -> None:
        self.ran.set()

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        assert leg == WHOLE
        async with self.news:
            self.begun.append(request.priority)
            self.news.notify_all()
        if self.slow in (None, len(request.prompt)):
            await self.ran.wait()
        yield TokenEvent((1,))
        await self.go.wait()
        yield TokenEvent((1,), FinishReason.LENGTH)


@dataclass
class Crowd:
    """A door with a gate, and clients before it."""

    door: Held
    gate: AdmissionGate
    url: str
    session: aiohttp.ClientSession

    async def ask(self, **fields: object) -> tuple[int, Any, str | None]:
        """Status, body, and when to come back."""
        headers = {k: str(v) for k, v in fields.items() if k.startswith("X-")}
        body = {"prompt": "the", "max_tokens": 2, **fields}
        async with self.session.post(self.url, json=body, headers=headers) as answer:
            return answer.status, await answer.json(), answer.headers.get("Retry-After")

    async def waiting(self, count: int) -> None:
        """Until so many are in line."""
        await comes_true(lambda: len(self.gate.admission.queue) == count)

    async def at_work(self, count: int) -> None:
        async with self.door.news:
            await self.door.news.wait_for(lambda: len(self.door.begun) == count)


@asynccontextmanager
async def crowd(
    key: KeyLimits | None = None, timeout_s: float | None = None, **most: int
) -> AsyncGenerator[Crowd]:
    """Nobody is at work or in line when it is over."""
    admission = Admission(limits(**most), key or KeyLimits())
    gate, door, app = AdmissionGate(admission, timeout_s=timeout_s), Held(), Quart("door")
    model = served()
    app.register_blueprint(openai_routes(door, model, gate=gate))
    async with (
        asyncio.timeout(PATIENCE_S),
        serving(app) as address,
        aiohttp.ClientSession() as session,
    ):
        yield Crowd(door, gate, f"http://{address}{COMPLETIONS}", session)
        door.go.set()
        await comes_true(lambda: not gate.admission.in_use.choices)
        await comes_true(lambda: not len(gate.admission.queue))
    model.grammars.close()


async def test_who_waits_is_answered_in_the_end_most_urgent_first() -> None:
    async with crowd(requests=1) as clients, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(clients.ask())]
        await clients.at_work(1)
        for count, priority in enumerate((7, 7, -3), 1):
            asked.append(tasks.create_task(clients.ask(**{"X-Vllm-Priority": priority})))
            await clients.waiting(count)
        clients.door.go.set()
        assert [status for status, _, _ in await asyncio.gather(*asked)] == [200] * 4
        assert clients.door.begun == [0, -3, 7, 7]
        assert sum(clients.gate.waits.counts) == 4


async def test_a_body_says_more_of_priority_than_a_header() -> None:
    async with crowd() as clients:
        clients.door.go.set()
        await clients.ask(priority=2, **{"X-Vllm-Priority": 9})
        assert clients.door.begun == [2]
        status, said, _ = await clients.ask(**{"X-Vllm-Priority": "high"})
        assert (status, said["error"]["param"]) == (400, "X-Vllm-Priority")


async def test_a_full_line_is_503_and_a_keys_is_429_with_a_reason_and_a_time() -> None:
    for key, status, kind in (
        (None, 503, "server_error"),
        (KeyLimits(max_requests=1, max_queued=0), 429, "rate_limit_error"),
    ):
        most = {"queued": 0} if key is None else {}
        async with crowd(key, requests=1, **most) as clients, asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.ask())
            await clients.at_work(1)
            refused, said, later = await clients.ask()
            assert (refused, said["error"]["type"], later) == (status, kind, "1")
            assert "in line" in said["error"]["message"]
            clients.door.go.set()


async def test_a_client_that_leaves_the_line_frees_its_place_at_once() -> None:
    async with crowd(requests=1, queued=1) as clients, asyncio.TaskGroup() as tasks:
        tasks.create_task(clients.ask())
        await clients.at_work(1)
        impatient = asyncio.create_task(clients.ask())
        await clients.waiting(1)
        assert (await clients.ask())[0] == 503
        impatient.cancel()
        await clients.waiting(0)
        tasks.create_task(clients.ask())
        await clients.waiting(1)
        clients.door.go.set()


async def test_a_client_that_leaves_its_stream_frees_its_place_at_once() -> None:
    async with crowd(requests=1) as clients:
        body = {"prompt": "the", "stream": True}
        async with clients.session.post(clients.url, json=body) as stream:
            await stream.content.readany()
            waiting = asyncio.create_task(clients.ask())
            await clients.waiting(1)
        await clients.at_work(2)
        clients.door.go.set()
        assert (await waiting)[0] == 200


async def test_a_deadline_ends_the_wait_in_line_and_the_work_too() -> None:
    async with crowd(requests=1) as clients, asyncio.TaskGroup() as tasks:
        tasks.create_task(clients.ask())
        await clients.at_work(1)
        status, said, later = await clients.ask(timeout=0.05)
        assert (status, later) == (503, "1")
        assert said["error"]["message"] == (
            "Overloaded: the request was still in line after 0.05 s, the timeout that the "
            "request has set (timeout or X-Request-Timeout)"
        )
        clients.door.go.set()
        await clients.waiting(0)
    async with crowd(timeout_s=0.05) as clients:
        status, said, _ = await clients.ask()
        assert (status, said["error"]["message"]) == (
            504,
            "Timed out: the answer was not complete within 0.05 s, this server's limit for "
            "requests that set no timeout (--request-timeout-s)",
        )
        assert clients.gate.admission.refused == {"timeout": 1}
        clients.door.go.set()
        assert (await clients.ask(**{"X-Request-Timeout": 60}))[0] == 200
        assert (await clients.ask(**{"X-Request-Timeout": "nan"}))[0] == 400


async def test_a_stream_whose_time_is_over_says_so_at_its_end() -> None:
    async with crowd() as clients:
        body = {"prompt": "the", "max_tokens": 2, "stream": True, "timeout": BEGUN_S}
        async with clients.session.post(clients.url, json=body) as stream:
            said = await stream.text()
        assert stream.status == 200
        assert f"within {BEGUN_S:g} s, the timeout that the request has set" in said
        assert said.endswith("data: [DONE]\n\n")


async def test_new_nodes_let_in_who_waits() -> None:
    async with crowd(node_requests=1) as clients, asyncio.TaskGroup() as tasks:
        nodes = [NodeCounts(1)]
        clients.gate.nodes = lambda _model: nodes[0]
        looking = tasks.create_task(clients.gate.run())
        tasks.create_task(clients.ask())
        await clients.at_work(1)
        tasks.create_task(clients.ask())
        await clients.waiting(1)
        nodes[0] = NodeCounts(2)
        await clients.at_work(2)
        assert len(clients.gate.admission.queue) == 0
        clients.door.go.set()
        looking.cancel()


async def test_what_has_gone_of_a_requests_time_before_the_gate_is_gone() -> None:
    gate, now = AdmissionGate(clock=lambda: 5.0), asyncio.get_running_loop().time()
    token = current.set(HttpExchange(received=0.5))
    try:
        async with gate.enter(AdmissionRequest(1, 1, timeout_s=10.0)) as let_in:
            assert let_in.deadline is not None
            assert let_in.deadline.at == pytest.approx(now + 5.5, abs=1.0)
    finally:
        current.reset(token)
