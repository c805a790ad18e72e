"""A client that leaves before its decode leg reached the engine leaves no KV behind.

Such as a router of another project: there is no prefill leg that could be closed.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from google.protobuf.message import Message

from api.endpoints import TextEndpoints
from api.generator import Leg, TicketEvent, TokenEvent
from api.grpc.calls import CallAborted, Completions, Context, RequestForm, RunningCalls
from api.grpc.protos import inference_pb2
from engine.grammars.checking import GrammarChecker
from engine.request import FinishReason, Grammar
from kv_transfer.ticket import HOLD, Driven, KvTicket, to_params
from node.ipc import Abort, DeclineLeg, SubmitLeg
from node.legs import LegFinder
from node.refused_legs import RefusedLegs
from tests.fakes.text import OneToken, served
from tests.fakes.waiting import comes_true
from tests.unit.test_refused_legs import ASKS, TICKET, Door

PATIENCE_S = 60.0
CHECKED: Mapping[str, Mapping[str, object]] = {
    "/v1/completions": {"guided_regex": "a+"},
    "/v1/chat/completions": {"guided_regex": "a+"},
    "/inference/v1/generate": {
        "sampling_params": {"structured_outputs": {"regex": "a+"}, "max_tokens": 2}
    },
}


class Busy(GrammarChecker):
    """It never comes to the end of a grammar."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def checked(self, grammar: Grammar) -> None:
        self.asked.set()
        await asyncio.Event().wait()


class Client:
    """A call from its first byte until its client leaves."""

    def __init__(self, path: str, body: bytes, *, whole: bool = True) -> None:
        self.leaves = asyncio.Event()
        self.said = list[Any]()
        self._says = deque([{"type": "http.request", "body": body, "more_body": not whole}])
        self._scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }

    async def call(self, door: Door) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await door.app(self._scope, self._receive, self._send)  # type: ignore[arg-type]

    @property
    def has_ticket(self) -> bool:
        """Whether it was told where the KV is."""
        return any(b'"kv_transfer_params"' in one.get("body", b"") for one in self.said)

    async def _receive(self) -> object:
        if self._says:
            return self._says.popleft()
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: object) -> None:
        self.said.append(message)


def body(path: str, ticket: KvTicket, more: Mapping[str, object]) -> bytes:
    params = to_params(ticket, Driven())
    return msgspec.json.encode({**ASKS[path], "kv_transfer_params": params, **more})


@pytest.mark.parametrize("path", CHECKED)
async def test_kv_of_a_call_whose_client_left_before_its_leg_began_is_not_kept(
    path: str,
) -> None:
    grammars = Busy()
    door = Door(grammars)
    client = Client(path, body(path, TICKET, CHECKED[path]))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.call(door))
        await grammars.asked.wait()
        assert door.sent == []
        client.leaves.set()
    assert door.sent == [DeclineLeg(Leg(ticket=TICKET))]
    assert client.said == []


@pytest.mark.parametrize("path", ASKS)
async def test_a_call_whose_client_left_at_once_ends_and_its_kv_is_not_kept(path: str) -> None:
    """The end of the connection may come with that of the body."""
    door, client = Door(), Client(path, body(path, TICKET, {}))
    client.leaves.set()
    await client.call(door)
    assert isinstance(door.sent[-1], DeclineLeg)
    assert door.sent[-1].leg.ticket == TICKET


@pytest.mark.parametrize("path", ASKS)
async def test_a_client_that_leaves_amid_its_call_is_not_waited_for(path: str) -> None:
    """The rest of its body never comes."""
    said = body(path, TICKET, {})
    door, client = Door(), Client(path, said[:-1], whole=False)
    client.leaves.set()
    await client.call(door)
    assert door.sent == []


async def test_kv_of_a_call_that_runs_is_given_up_by_its_leg() -> None:
    path = "/inference/v1/generate"
    door, client = Door(), Client(path, body(path, TICKET, {}))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.call(door))
        await door.heard.wait()
        client.leaves.set()
    kinds = [type(one) for one in door.sent]
    assert kinds[:2] == [SubmitLeg, Abort]


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("more", [{}, {"stop": "%"}, {"stream": True}], ids=str)
async def test_kv_of_a_choice_that_is_ready_is_not_kept_for_a_client_that_left(
    more: Mapping[str, object], *, leaves: bool
) -> None:
    """Its ticket would come with the answer, which waits for the other choice."""
    path = "/v1/completions"
    said = {**ASKS[path], "n": 2, "kv_transfer_params": dict(HOLD), "max_tokens": 1, **more}
    door, client = Door(), Client(path, msgspec.json.encode(said))
    last = TokenEvent((5,), FinishReason.LENGTH)  # %
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.call(door))
        await comes_true(lambda: len(door.sent) == 2)
        legs = [one for one in door.sent if isinstance(one, SubmitLeg)]
        first, second = (one.request.request_id for one in legs)
        assert [one.leg.hold for one in legs] == [True, False]
        door.say((first, TicketEvent(TICKET)), (first, last))
        await comes_true(lambda: not door.waits_for(first))
        assert not client.has_ticket
        if not leaves:
            door.say((second, last))
            await comes_true(lambda: client.has_ticket)
        client.leaves.set()
    aborted = {one.request_id for one in door.sent if isinstance(one, Abort)}
    assert aborted == ({first, second} if leaves else set())
    assert door.engine.num_legs == 0


@pytest.mark.parametrize("by_abort", [False, True])
async def test_kv_of_a_grpc_call_that_ended_before_its_leg_began_is_not_kept(
    *, by_abort: bool
) -> None:
    """Its client has left, or another call has ended it."""
    grammars, running, declined = Busy(), RunningCalls(), list[Leg]()

    async def decline(leg: Leg) -> None:
        declined.append(leg)

    texts = TextEndpoints(OneToken(), replace(served(), grammars=grammars))
    refused = RefusedLegs(LegFinder("h:2"), decline)
    completions = Completions(texts, refused.give_up_of, running)
    said = msgspec.json.decode(body("/v1/completions", TICKET, {"guided_regex": "a+"}))
    form: RequestForm[Message] = RequestForm(lambda _: "r", lambda *_: said, lambda _: said)

    async def call() -> None:
        request = inference_pb2.GenerateRequest()
        async with completions.answered(request, form, cast("Context", None)):
            raise AssertionError("it has no answer")

    task = asyncio.create_task(call())
    async with asyncio.timeout(PATIENCE_S):
        await grammars.asked.wait()
        if by_abort:
            running.abort(["r"])
        else:
            task.cancel()
        await asyncio.wait([task])
    assert [leg.ticket and leg.ticket.ticket_id for leg in declined] == [TICKET.ticket_id]
    if by_abort:
        assert isinstance(task.exception(), CallAborted)
    else:
        assert task.cancelled()
