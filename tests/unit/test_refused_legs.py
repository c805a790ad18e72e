"""A decode leg that its node refuses leaves no KV at the prefill node."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from quart import Quart

from api.body_limits import MOST_KEYS
from api.generator import Event, Leg
from api.routes import openai_routes
from engine.api import EngineLoad
from engine.grammars.checking import GrammarChecker
from engine.request import Request, RequestId, Sampling
from kv_transfer.api import Outcome
from kv_transfer.ticket import Driven, KvTicket, to_params
from node.engine_client import EngineClient
from node.ipc import DeclineLeg, EngineOutputs, ToEngine, decode_to_engine
from node.legs import LegFinder
from node.refused_legs import RefusedLegs
from tests.fakes.decoding import Pair, rid
from tests.fakes.http import Json
from tests.fakes.text import served
from tests.unit.test_node_door import READY, app_of

TICKET = KvTicket("t", "e", "h", 1, "f")
COMPLETION = {"prompt": [1, 2], "max_tokens": 1_000_000}
LEGS: dict[str, dict[str, Json]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "n": 0},
    "/inference/v1/generate": {"token_ids": [1], "sampling_params": {"temperature": -1}},
}

ASKS: dict[str, dict[str, Json]] = {
    "/v1/completions": {"prompt": [1, 2]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/inference/v1/generate": {"token_ids": [1], "sampling_params": {}},
}


class Door:
    """A node's HTTP server; `sent` is what its engine process gets."""

    def __init__(self, grammars: GrammarChecker | None = None) -> None:
        self.sent, self.heard = list[ToEngine](), asyncio.Event()

        async def send(frame: bytes) -> None:
            self.sent.append(decode_to_engine(frame))
            self.heard.set()

        process: Any = SimpleNamespace(returncode=None)
        socket: Any = SimpleNamespace(send=send)
        self.engine = engine = EngineClient(process, socket, READY)
        legs = LegFinder("h:2")
        model = replace(served(), grammars=grammars or GrammarChecker())
        self.app: Quart = app_of(engine, model.grammars)
        self.app.register_blueprint(openai_routes(engine, model, legs.of_text))
        refused = RefusedLegs(legs, engine.decline)
        self.app.after_request(refused.give_up)
        self.app.teardown_request(refused.give_up_left)

    def say(self, *events: tuple[RequestId, Event]) -> None:
        """What its engine process says."""
        self.engine._apply(EngineOutputs(list(events), EngineLoad(0, 1, 3, 4)))

    def waits_for(self, leg: RequestId) -> bool:
        """Whether it has not read all that was said of this leg."""
        inbox = self.engine._inboxes.get(leg)
        return inbox is not None and bool(inbox.events)

    async def post(self, path: str, body: object, outer_id: str | None = None) -> int:
        headers = {} if outer_id is None else {"X-Request-Id": outer_id}
        answer = await self.app.test_client().post(path, json=body, headers=headers)
        return answer.status_code


@pytest.mark.parametrize("outer_id", [None, "r"])
@pytest.mark.parametrize("path", LEGS)
async def test_kv_of_a_call_that_is_refused_is_not_kept(
    path: str, outer_id: str | None
) -> None:
    door = Door()
    params = {**to_params(TICKET, Driven(keep_open=True)), "remote_notes": {"of": "others"}}
    body: dict[str, object] = {**LEGS[path], "kv_transfer_params": params}
    assert await door.post(path, body, outer_id) == 400
    assert door.sent == [DeclineLeg(Leg(ticket=TICKET, keep_open=True))]


@pytest.mark.parametrize("path", ASKS)
async def test_kv_of_a_call_for_a_model_that_is_not_here_is_not_kept(path: str) -> None:
    """Such as an adapter that the prefill node has, and this one has not."""
    door = Door()
    params = {"model": "x", "kv_transfer_params": to_params(TICKET)}
    assert await door.post(path, {**ASKS[path], **params}) == 404
    assert door.sent == [DeclineLeg(Leg(ticket=TICKET))]


async def test_a_body_of_too_many_keys_is_not_read_again() -> None:
    door, many = Door(), dict.fromkeys(map(str, range(MOST_KEYS)), 1)
    body = {**ASKS["/v1/completions"], "x": many, "kv_transfer_params": to_params(TICKET)}
    assert await door.post("/v1/completions", body) == 400
    assert door.sent == []


async def test_a_call_of_no_endpoint_is_not_read() -> None:
    door = Door()
    assert await door.post("/v2", {"kv_transfer_params": to_params(TICKET)}) == 404
    assert door.sent == []


@pytest.mark.parametrize("in_body", [False, True])
async def test_kv_that_is_found_by_the_request_id_is_not_kept_either(*, in_body: bool) -> None:
    door, name = Door(), "___prefill_addr_p:1___decode_addr_h:2_1"
    body: dict[str, Json] = {**COMPLETION, "request_id": name if in_body else 7}
    assert await door.post("/v1/completions", body, None if in_body else name) == 400
    assert door.sent == [DeclineLeg(Leg(ticket=KvTicket(f"{name}#0", None, "p", 1, None)))]


@pytest.mark.parametrize(
    ("asks", "choices"),
    [
        ({"n": 3}, 3),
        ({"prompt": [[1, 2], "a"], "n": 2}, 4),
        ({"prompt": [[1]] * 2_048, "n": 128}, 2_048),
        ({"prompt": [], "n": 2}, 2),
        ({"prompt": [1, "a"], "n": 2}, 2),
        ({"n": 10**9}, 1),
        ({"n": "3"}, 1),
    ],
)
async def test_kv_that_is_found_by_the_request_id_is_kept_for_none_of_its_choices(
    asks: dict[str, Json], choices: int
) -> None:
    door, name = Door(), "___prefill_addr_p:1___decode_addr_h:2_1"
    assert await door.post("/v1/completions", COMPLETION | asks, name) == 400
    assert door.sent == [
        DeclineLeg(Leg(ticket=KvTicket(f"{name}#{index}", None, "p", 1, None)))
        for index in range(choices)
    ]


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"\xff", {"kv_transfer_params": {"do_remote_prefill": True}}, {}]
)
async def test_a_call_that_names_no_kv_is_only_refused(body: object) -> None:
    door = Door()
    client = door.app.test_client()
    whole = body if isinstance(body, bytes) else None
    said = await client.post(
        "/v1/completions", **({"json": body} if whole is None else {"data": whole})
    )
    assert said.status_code == 400
    assert door.sent == []


@pytest.mark.parametrize("keep_open", [False, True])
def test_the_engine_gives_up_what_no_leg_will_fetch(*, keep_open: bool) -> None:
    """Unless a proxy keeps the prefill leg open."""
    pair = Pair()
    pair.node.decline(Leg(ticket=pair.source.offer("r"), keep_open=keep_open))
    assert pair.outcomes() == ([] if keep_open else [Outcome.WITHDRAWN])


def test_the_engine_does_not_give_up_what_another_leg_will_fetch() -> None:
    pair, asked = Pair(), Request(rid, (1, 2), Sampling(2))
    ticket = pair.source.offer("r")
    pair.submit(asked, ticket)
    pair.node.decline(Leg(ticket=ticket))
    pair.tick()
    pair.node.decline(Leg(ticket=ticket))
    pair.seal(ticket, asked)
    pair.tick(8)
    assert pair.outcomes() == [Outcome.DELIVERED]
