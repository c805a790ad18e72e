"""POST /inference/v1/generate at a node: what of a leg's events the caller reads."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
import pytest

from api.generate import decode_call
from api.generated import DONE, decode_event
from api.generator import (
    EndEvent,
    Event,
    FailedEvent,
    Leg,
    PromptEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from engine.request import FinishReason, RequestId
from kv_transfer.ticket import KvTicket
from node.ipc import EngineOutputs, SubmitLeg
from node.routes import KEEPALIVE_COMMENT, _streamed
from tests.unit.test_engine_client import IN_USE, Engine
from tests.unit.test_node_door import app_of

PATH = "/inference/v1/generate"
CALL: dict[str, Any] = {"token_ids": [1], "sampling_params": {"max_tokens": 2}}
HOLD = {"do_remote_decode": True, "do_remote_prefill": False}
KEEP_OPEN = {**HOLD, "pdserve": {"keep_open": True}}
TICKET = KvTicket("t", "e", "h", 1, "f", relayed={"remote_block_ids": [[]]})
TOKEN, LAST = TokenEvent((3,)), TokenEvent((4,), FinishReason.LENGTH)
RETRY, REFUSED = FailedEvent("later", True), FailedEvent("too long", False, param="token_ids")
XPYD = "___prefill_addr_h:2___decode_addr_h:3_1"


class Door:
    """A node's door, behind which an engine says these events to each leg at once."""

    def __init__(self, *said: Event | None) -> None:
        self.engine, self.said = Says(said), said
        self.app = app_of(self.engine.told)

    async def post(self, outer_id: str = "r", **more: object) -> tuple[int, bytes]:
        headers = {"X-Request-Id": outer_id}
        async with asyncio.timeout(10):
            client = self.app.test_client()
            answer = await client.post(PATH, json={**CALL, **more}, headers=headers)
            return answer.status_code, await answer.get_data(as_text=False)


class Says(Engine):
    def __init__(self, said: Sequence[Event | None]) -> None:
        super().__init__()
        self.said, self.told = said, self.client()

    async def send(self, frame: bytes) -> None:
        await super().send(frame)
        if not isinstance(self.sent[-1], SubmitLeg):
            return
        name = self.submitted[-1]
        for event in self.said:
            if event is None:
                self.told._inboxes[name].put(None)
            else:
                self.told._apply(EngineOutputs([(name, event)], IN_USE))

    @property
    def leg(self) -> Leg:
        (submitted,) = [one for one in self.sent if isinstance(one, SubmitLeg)]
        return submitted.leg


def read(body: bytes) -> list[Event]:
    frames = body.removesuffix(b"\n\n").split(b"\n\n")
    return [event for frame in frames for event in decode_event(frame)]


def events_of(answer: tuple[int, bytes]) -> list[Event]:
    status, body = answer
    assert status == 200
    return read(body)


async def test_an_answer_is_streamed_to_its_end() -> None:
    said: list[Event] = [PromptEvent(0), StageEvent("queue", 0.5), TOKEN, LAST]
    assert events_of(await Door(*said).post(stream=True)) == [*said, EndEvent()]


@pytest.mark.parametrize("early", [False, True])
async def test_a_prefill_leg_s_token_comes_with_its_ticket(*, early: bool) -> None:
    """Drivers of other makes look for it in the last chunk."""
    said: list[Event] = [PromptEvent(0), TicketEvent(TICKET)]
    said = said[::-1] if early else said
    door = Door(*said, TOKEN)
    told = events_of(await door.post(stream=True, kv_transfer_params=HOLD))
    assert told == [*said, TicketEvent(TICKET), TOKEN, EndEvent()]
    assert door.engine.leg == Leg(hold=True)


@pytest.mark.parametrize("last", [EndEvent(), RETRY])
async def test_a_leg_that_is_kept_open_ends_with_the_end_of_its_offer(last: Event) -> None:
    door = Door(TicketEvent(TICKET), TOKEN, last)
    status, body = await door.post(stream=True, kv_transfer_params=KEEP_OPEN)
    assert (status, read(body)[-1]) == (200, last)
    assert body.count(DONE) == (last == EndEvent())


async def test_a_leg_without_a_stream_cannot_be_kept_open() -> None:
    door = Door()
    status, body = await door.post(kv_transfer_params=KEEP_OPEN)
    assert (status, msgspec.json.decode(body)["error"]["param"]) == (400, "kv_transfer_params")
    assert not door.engine.sent


async def test_a_refusal_has_its_status_also_where_a_stream_was_asked_for() -> None:
    status, body = await Door(REFUSED).post(stream=True)
    assert (status, read(b"data: " + body)) == (400, [REFUSED])


async def test_a_failure_that_another_try_may_mend_is_told_in_the_stream() -> None:
    """A status would be the server's; this says which node failed, and how."""
    assert events_of(await Door(RETRY).post(stream=True)) == [RETRY]


@pytest.mark.parametrize(("failed", "status"), [(REFUSED, 400), (RETRY, 502)])
async def test_a_whole_answer_that_fails_has_its_status(
    failed: FailedEvent, status: int
) -> None:
    said = await Door(PromptEvent(0), TOKEN, failed).post()
    assert (said[0], read(b"data: " + said[1])) == (status, [failed])


async def test_a_whole_answer_leaves_signs_of_life_out() -> None:
    status, body = await Door(None, PromptEvent(0), None, TOKEN, LAST).post()
    (choice,) = msgspec.json.decode(body)["choices"]
    assert (status, choice["token_ids"], choice["finish_reason"]) == (200, [3, 4], "length")


async def test_a_stream_has_signs_of_life_as_comments() -> None:
    _, body = await Door(None, PromptEvent(0), None, LAST).post(stream=True)
    assert body.startswith(KEEPALIVE_COMMENT)
    assert body.count(KEEPALIVE_COMMENT) == 2


async def test_a_call_s_leg_may_be_in_its_request_id() -> None:
    door = Door(PromptEvent(0), TicketEvent(TICKET), TOKEN)
    await door.post(XPYD)
    assert door.engine.leg == Leg(hold=True, outer_id=f"{XPYD}#0")


async def test_a_stream_may_last() -> None:
    """Quart would cut it after a minute."""

    async def events() -> AsyncGenerator[Event]:
        yield LAST

    call = decode_call(msgspec.json.encode(CALL), request_id=RequestId("r"))
    response = await _streamed(call, events())
    assert response.timeout is None
    async with response.response as frames:
        assert b"".join([frame async for frame in frames]).endswith(DONE)
