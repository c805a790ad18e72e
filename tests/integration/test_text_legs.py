"""Every text endpoint of a node takes legs: routers tag whatever a client calls."""

from collections.abc import Mapping

import msgspec
import pytest

from api.generator import Event, Leg, PromptEvent, TicketEvent, TokenEvent
from api.served import read_leg_params
from kv_transfer.ticket import KvTicket, to_params
from tests.fakes.http import Client, Json
from tests.fakes.text import FakeDoor, byte_level, saying, served

HOLD = {"do_remote_decode": True, "do_remote_prefill": False}
TICKET = KvTicket("t", "e", "h", 1, "f")
HELD: list[Event] = [
    *(TicketEvent(TICKET), PromptEvent(0)),
    TokenEvent((byte_level().encode("the")[0],), None),
]
HI = [{"role": "user", "content": "hi"}]
CALLS: Mapping[str, Json] = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/chat/completions": {"messages": HI, "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": HI, "max_tokens": 1},
}
every_path = pytest.mark.parametrize("path", CALLS)


@every_path
async def test_a_prefill_leg_answers_with_its_ticket(path: str) -> None:
    door = FakeDoor(lambda request, leg: HELD)
    client = Client(door, served(), read_leg_params)
    fields = {**CALLS[path], "kv_transfer_params": HOLD}
    whole = await client.post(path, **fields)
    assert whole.json["kv_transfer_params"] == to_params(TICKET)
    streamed = await client.post(path, stream=True, **fields)
    told = msgspec.json.encode(to_params(TICKET)).decode()
    assert streamed.body.count('"kv_transfer_params"') == streamed.body.count(told) == 1
    assert [leg for _, leg in door.asked] == [Leg(hold=True)] * 2


@every_path
async def test_a_decode_leg_is_asked_with_the_ticket(path: str) -> None:
    door = saying("the cat")
    client = Client(door, served(), read_leg_params)
    answer = await client.post(path, **CALLS[path], kv_transfer_params=to_params(TICKET))
    [(_, leg)] = door.asked
    assert leg.ticket is not None
    assert to_params(leg.ticket) == to_params(TICKET)
    assert "kv_transfer_params" not in answer.json


@pytest.mark.parametrize("asked", [{"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}])
async def test_a_prompt_that_is_to_be_scored_is_run_and_its_ticket_is_given_up(
    asked: Mapping[str, Json],
) -> None:
    """KV that is fetched does not tell how likely the prompt's tokens are."""
    door, fields = saying("the cat"), {**CALLS["/v1/completions"], **asked, "n": 2}
    client = Client(door, served(), read_leg_params)
    await client.post("/v1/completions", **fields, kv_transfer_params=to_params(TICKET))
    first, second = [leg for _, leg in door.asked]
    assert first.ticket is not None
    assert (first.ticket.ticket_id, first.recompute) == ("t", True)
    assert second == Leg()


@every_path
async def test_a_proxy_ignores_them(path: str) -> None:
    door = saying("the cat")
    answer = await Client(door, served()).post(path, **CALLS[path], kv_transfer_params=HOLD)
    assert [leg for _, leg in door.asked] == [Leg()]
    assert "kv_transfer_params" not in answer.json
