"""What a node says of its own health: that of its engine process."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from quart import Quart

from api.generator import Leg
from api.routes import http_app, openai_routes
from api.served import ServedModel
from api.version import own_version
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.errors import GrammarCheckBusy
from engine.grammars.checking import GrammarChecker
from engine.request import Grammar, Request, RequestId, Sampling
from kv_transfer.layout import KvLayout
from kv_transfer.ticket import LONGEST_NAME, KvTicket, from_params, to_params
from node.engine_client import ENGINE_SILENT_S, STOPPING, EngineClient
from node.ipc import NO_LOAD, EngineReady, SubmitLeg, decode_to_engine
from node.legs import LegFinder
from node.metrics import NodeMetrics
from node.routes import NodeRoutes
from proxy.errors import Cause
from proxy.nodes.failures import failure_of_status

READY = EngineReady("f", KvLayout("bytes", 1, 1, (4,)), 512, 21001, NO_LOAD)


@pytest.mark.parametrize(
    ("ended_with", "silent_s", "status"),
    [(None, 0.0, 200), (None, ENGINE_SILENT_S + 1, 503), (-9, 0.0, 503)],
)
async def test_health_is_that_of_the_engine_process(
    ended_with: int | None, silent_s: float, status: int
) -> None:
    process: Any = SimpleNamespace(returncode=ended_with)
    socket: Any = None
    heard_at = time.monotonic() - silent_s
    engine = EngineClient(process, socket, READY, heard_at=heard_at)
    app = app_of(engine)
    assert (await app.test_client().get("/health")).status_code == status


async def test_a_leg_that_comes_when_its_node_stops_is_told_so_at_once() -> None:
    """The engine will not say anything any more."""
    process: Any = SimpleNamespace(returncode=-9)
    socket: Any = None
    engine = EngineClient(process, socket, READY)
    engine.reject_legs()
    request = Request(RequestId("r"), (1,), Sampling())
    async with asyncio.timeout(10):
        assert [event async for event in engine.events(request)] == [STOPPING]
    assert STOPPING.leaving


async def test_however_long_a_request_s_id_is_its_ticket_can_be_read() -> None:
    """The ticket's own id has it in it, and a decode node reads no longer id than others'."""
    sent = list[bytes]()

    async def send(frame: bytes) -> None:
        sent.append(frame)

    process: Any = SimpleNamespace(returncode=None)
    socket: Any = SimpleNamespace(send=send)
    engine = EngineClient(process, socket, READY)
    engine.reject_legs()
    request = Request(RequestId("r" * LONGEST_NAME), (1,), Sampling())
    assert [event async for event in engine.events(request, Leg(hold=True))] == [STOPPING]
    submitted = decode_to_engine(sent[0])
    assert isinstance(submitted, SubmitLeg)
    ticket = KvTicket(f"{uuid4().hex}/{submitted.request.request_id}", "e", "h", 1, "f")
    read = from_params(to_params(ticket))
    assert read is not None
    assert read.ticket_id == ticket.ticket_id


async def test_a_whole_answer_of_a_node_that_stops_is_refused_with_its_status() -> None:
    process: Any = SimpleNamespace(returncode=-9)
    socket: Any = None
    engine = EngineClient(process, socket, READY)
    engine.reject_legs()
    call = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1}}
    async with asyncio.timeout(10):
        client = app_of(engine).test_client()
        answer = await client.post("/inference/v1/generate", json=call)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


async def test_a_prompt_to_be_pooled_that_comes_when_its_node_stops_is_sent_elsewhere() -> None:
    """With a status and a word of its own: another node is to be asked, and nobody blamed."""
    process: Any = SimpleNamespace(returncode=-9)
    socket: Any = None
    engine = EngineClient(process, socket, READY)
    engine.reject_legs()
    app, served = Quart("node"), ServedModel(("m",), None, lambda: None)
    app.register_blueprint(openai_routes(engine, served, embedder=engine))
    async with asyncio.timeout(10):
        answer = await app.test_client().post("/pooling", json={"input": [1, 2]})
        said = await answer.get_data(as_text=False)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    here = Node(Registration(Role.PREFILL, "h:1", "h:2", node_id="n"), 0.0)
    failure = failure_of_status(here, answer.status_code, said)
    assert (failure.cause, failure.retryable) == (Cause.LEAVING, True)


def app_of(engine: EngineClient, grammars: GrammarChecker | None = None) -> Quart:
    app, here = http_app("node"), Registration(Role.DECODE, "h:1", "h:2")
    checker = grammars or GrammarChecker()
    door = NodeRoutes(engine, NodeMetrics(), lambda: here, LegFinder("h:2"), checker)
    app.register_blueprint(door.blueprint())
    return app


async def test_a_grammar_that_cannot_be_served_never_reaches_the_engine() -> None:
    nobody: Any = None
    body = {
        "token_ids": [1],
        "sampling_params": {"structured_outputs": {"regex": "("}},
        "stream": True,
    }
    with GrammarChecker() as checker:
        door = app_of(nobody, checker).test_client()
        said = await door.post("/inference/v1/generate", json=body)
    assert said.status_code == 400
    assert b"regex" in await said.get_data(as_text=False)


async def test_who_cannot_look_at_a_grammar_now_may_be_asked_again() -> None:
    class Busy(GrammarChecker):
        async def checked(self, grammar: Grammar) -> None:
            raise GrammarCheckBusy("too many")

    nobody: Any = None
    body = {"token_ids": [1], "sampling_params": {"structured_outputs": {"regex": "a"}}}
    said = await app_of(nobody, Busy()).test_client().post("/inference/v1/generate", json=body)
    assert said.status_code == 503
    assert b"too many" in await said.get_data(as_text=False)


async def test_a_node_tells_its_version_as_vllms_do() -> None:
    """Without that, smg takes whoever has a /server_info for a node of SGLang."""
    nobody: Any = None
    said = await app_of(nobody).test_client().get("/version")
    assert said.status_code == 200
    assert await said.get_json() == {"version": own_version()}
