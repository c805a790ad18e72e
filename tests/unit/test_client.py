"""What becomes of a leg when a node answers well, badly, or not at all."""

import asyncio
import os
import resource
from collections.abc import Iterable

import msgspec
import pytest

from api.generate import decode_call
from api.generator import WHOLE, EndEvent, Event, FailedEvent, Leg, TicketEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import FinishReason, Request, RequestId, Sampling
from kv_transfer.ticket import KvTicket, to_params
from proxy.errors import Cause, NodeFailed, ProxyExhausted
from proxy.nodes.client import HttpNodeClient
from proxy.nodes.connection_pool import open_connections
from tests.fakes.raw_http import (
    CUT,
    END,
    HANG,
    PATIENCE_S,
    SSE,
    RawServer,
    Step,
    answer,
    chunk,
    events,
    raw_server,
)

LATE_S = 0.01
HOLD = Leg(hold=True, keep_open=True)
PARAMS = to_params(KvTicket("t", "e", "h", 1, None))
DONE = chunk(b"data: [DONE]\n\n")
REQUEST = Request(RequestId("r1"), (1, 2, 3), Sampling(4, min_tokens=3))
WELL = [SSE, *events({"choices": [{"token_ids": [7]}]})]
LAST = {"choices": [{"token_ids": [8], "finish_reason": "length"}]}
UNSIGNED = Cause.SIGNATURE


def node_at(server: RawServer, *, ours: bool = True) -> Node:
    name = "n0" if ours else None
    return Node(Registration(Role.DECODE, server.address, "h:1", name), heard_at=0)


async def ask(
    server: RawServer,
    leg: Leg = WHOLE,
    request: Request = REQUEST,
    *,
    ours: bool = True,
    silence_s: float = PATIENCE_S,
) -> list[Event]:
    async with open_connections() as lines:
        client = HttpNodeClient(lines, silence_s, silence_s, first_sign_s=silence_s)
        stream = client.generate(node_at(server, ours=ours), request, leg)
        return [event async for event in stream]


async def answers(*script: Step, leg: Leg = WHOLE, ours: bool = True) -> list[Event]:
    async with raw_server(script) as server:
        return await ask(server, leg, ours=ours)


async def failure(
    *scripts: Iterable[Step], leg: Leg = WHOLE, ours: bool = True, silence_s: float = PATIENCE_S
) -> NodeFailed:
    async with raw_server(*scripts) as server:
        with pytest.raises(NodeFailed) as failed:
            await ask(server, leg, ours=ours, silence_s=silence_s)
        return failed.value


def said_in(heard: list[Event]) -> tuple[int, ...]:
    """What came together is one event, and what that is is the network's affair."""
    return tuple(one for said in heard if isinstance(said, TokenEvent) for one in said.tokens)


async def test_tokens_come_as_they_are_said() -> None:
    heard = await answers(*WELL, chunk(b": still here\n\n"), *events(LAST), DONE, END)
    assert said_in(heard) == (7, 8)
    assert getattr(heard[-1], "finish", None) is FinishReason.LENGTH


async def test_the_call_is_the_contracts_and_its_id_is_no_header() -> None:
    """A client may put addresses into its id, and a node would take them for a leg's."""
    async with raw_server([SSE, *events(LAST), DONE, END]) as server:
        await ask(server)
    call = decode_call(server.bodies[0], request_id=RequestId("other"))
    assert (call.request, call.leg, call.stream) == (REQUEST, WHOLE, True)
    assert server.heads[0].startswith("POST /inference/v1/generate HTTP/1.1\r\n")
    assert "x-request-id" not in server.heads[0].lower()
    assert "\r\nAccept-Encoding: identity\r\n" in server.heads[0]  # nothing is unpacked here


async def test_a_held_leg_lasts_until_its_kv_was_taken() -> None:
    early = {"choices": [], "kv_transfer_params": PARAMS}
    first = {"choices": [{"token_ids": [7]}]}
    said = await answers(SSE, *events(early, first), DONE, END, leg=HOLD)
    assert [type(event) for event in said] == [TicketEvent, TokenEvent, EndEvent]


async def test_nobody_there() -> None:
    async with raw_server() as server:
        pass
    with pytest.raises(NodeFailed, match="refused") as failed:
        await ask(server)
    assert failed.value.retryable
    assert not failed.value.node_alive


async def test_for_want_of_files_it_is_the_proxy_s_own_fault() -> None:
    """No number is free for one more socket."""
    async with raw_server() as server, open_connections() as lines:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            stream = HttpNodeClient(lines).generate(node_at(server), REQUEST, WHOLE)
            with pytest.raises(ProxyExhausted, match="Too many open files"):
                await anext(stream)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_node_of_ours_has_to_begin_to_answer_in_time() -> None:
    """One that is not may be silent for as long as it prefills."""
    async with raw_server([HANG]) as server, open_connections() as lines:
        client = HttpNodeClient(lines, PATIENCE_S, PATIENCE_S, first_sign_s=0)
        with pytest.raises(NodeFailed, match="silent") as failed:
            await anext(client.generate(node_at(server), REQUEST, WHOLE))
        assert failed.value.cause is Cause.SILENT
    async with (
        raw_server([SSE, *events(LAST), DONE, END]) as server,
        open_connections() as lines,
    ):
        client = HttpNodeClient(lines, PATIENCE_S, PATIENCE_S, first_sign_s=0)
        foreign = client.generate(node_at(server, ours=False), REQUEST, WHOLE)
        assert [event async for event in foreign] == [TokenEvent((8,), FinishReason.LENGTH)]


async def test_a_failure_to_connect_says_why() -> None:
    async with raw_server() as server:
        server.address = "255.255.255.255:9"
        with pytest.raises(NodeFailed, match=r"no connection: .*[a-z]{3}"):
            await ask(server)


@pytest.mark.parametrize("script", [[HANG], [SSE, HANG], [*WELL, HANG]])
@pytest.mark.parametrize("ours", [True, False])
async def test_silence_is_a_failure(script: list[Step], ours: bool) -> None:
    failed = await failure(script, ours=ours, silence_s=0.05)
    assert "silent" in str(failed)
    assert (failed.retryable, failed.node_alive) == (True, False)


@pytest.mark.parametrize(
    "script",
    [
        [*WELL, CUT],
        [*WELL, b"5\r\nda", CUT],
        [*WELL, END],
        [*WELL, DONE, END],
        [SSE, DONE, END],
        [*WELL, chunk(b"data: {nonsense\n\n"), HANG],
        [b"nonsense\r\n\r\n", CUT],
    ],
    ids=["cut", "cut in a chunk", "ended", "done", "only done", "json", "http"],
)
async def test_a_stream_that_breaks_may_be_tried_elsewhere(script: list[Step]) -> None:
    failed = await failure(script, script)
    assert (failed.retryable, failed.node_alive, failed.node_id) == (True, False, "n0")


async def test_a_held_leg_without_a_ticket_ended_too_early() -> None:
    assert "early" in str(await failure([*WELL, DONE, END], leg=HOLD))


@pytest.mark.parametrize(
    ("status", "body", "retryable", "cause", "reason"),
    [
        (400, {"error": {"message": "too long"}}, False, Cause.REFUSED, "too long"),
        (400, "what?", False, Cause.REFUSED, "it answered with status 400"),
        (413, {}, False, Cause.REFUSED, "it answered with status 413"),
        (422, {"message": "no list"}, False, Cause.REFUSED, "no list"),
        (401, {}, True, UNSIGNED, "n0: it does not let us in: 401"),
        (403, {"error": {"message": "old"}}, True, UNSIGNED, "n0: it does not let us in: old"),
        (
            *(403, {"error": {"message": "old\nINFO forged" + "!" * 999}}, True, UNSIGNED),
            "n0: it does not let us in: " + repr("old\nINFO forged" + "!" * 485),
        ),
        (503, {"error": {"message": "draining"}}, True, Cause.BUSY, "n0: draining"),
        (429, {"error": {"message": "later"}}, True, Cause.BUSY, "n0: later"),
        (500, {"error": {"message": "oops"}}, True, Cause.NODE_ERROR, "n0: oops"),
        (404, {"message": "Not Found"}, True, Cause.REFUSED, "n0: Not Found"),
        (302, {}, True, Cause.REFUSED, "n0: it answered with status 302"),
    ],
)
async def test_refusals(
    status: int, body: object, retryable: bool, cause: Cause, reason: str
) -> None:
    failed = await failure([answer(status, body)])
    assert (failed.retryable, failed.cause) == (retryable, cause)
    assert str(failed) == reason


async def test_a_failure_that_is_told_is_the_pipelines_to_judge() -> None:
    told = {"error": {"message": "no room", "code": 502, "retryable": True, "by_peer": True}}
    assert await answers(SSE, *events(told), DONE, END) == [FailedEvent("no room", True, True)]


async def test_a_stale_connection_is_not_the_nodes_failure() -> None:
    script = [SSE, *events(LAST), DONE, END]
    async with raw_server(script, [CUT], script) as server, open_connections() as lines:
        client = HttpNodeClient(lines)
        for _ in range(2):
            stream = client.generate(node_at(server), REQUEST, WHOLE)
            assert len([event async for event in stream]) == 1
    assert server.connections == 2


async def test_closing_hangs_up_at_once() -> None:
    async with raw_server([*WELL, HANG]) as server, open_connections() as lines:
        stream = HttpNodeClient(lines).generate(node_at(server), REQUEST, WHOLE)
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(PATIENCE_S):
            await server.left.wait()


async def test_a_node_that_does_not_end_its_stream_costs_no_token() -> None:
    async with asyncio.timeout(PATIENCE_S / 2):
        said = await answers(*WELL, *events(LAST), HANG)
    assert said_in(said) == (7, 8)


@pytest.mark.parametrize("tokens", [[], [8]])
@pytest.mark.parametrize("finish", ["abort", "error"])
async def test_an_answer_that_its_node_cut_short_is_gone_on_with_elsewhere(
    tokens: list[int], finish: str
) -> None:
    cut = {"choices": [{"token_ids": tokens, "finish_reason": finish}]}
    *said, failed = await answers(*WELL, *events(cut), DONE, END, ours=False)
    assert said_in(said) == (7, *tokens)
    assert failed == FailedEvent(f"the answer was cut short: {finish}", retryable=True)


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_the_end_of_an_answer_may_come_without_a_token(finish: str) -> None:
    end = {"choices": [{"token_ids": [], "finish_reason": finish}]}
    said = await answers(*WELL, *events(end), DONE, END, ours=False)
    assert said == [TokenEvent((7,)), TokenEvent((), FinishReason(finish))]


def foreign_end(finish: str) -> list[bytes]:
    last = {"choices": [{"token_ids": [7], "finish_reason": finish}]}
    return events(last | {"kv_transfer_params": PARAMS})


async def test_a_foreign_prefill_leg_is_asked_for_one_token_and_ends_nothing() -> None:
    async with raw_server([SSE, *foreign_end("length"), DONE, END]) as server:
        said = await ask(server, HOLD, ours=False)
    assert [type(event) for event in said] == [TicketEvent, EndEvent]
    asked = msgspec.json.decode(server.bodies[0])["sampling_params"]
    assert (asked["max_tokens"], asked["min_tokens"]) == (1, 1)


async def test_a_foreign_node_counts_from_where_a_retry_begins() -> None:
    request = msgspec.structs.replace(REQUEST, generated=(7,))
    async with raw_server([SSE, *events(LAST), DONE, END]) as server:
        await ask(server, request=request, ours=False)
    asked = msgspec.json.decode(server.bodies[0])["sampling_params"]
    assert (asked["max_tokens"], asked["min_tokens"]) == (3, 2)


@pytest.mark.parametrize(("finish", "generated"), [("stop", ()), ("length", (5, 6, 7))])
async def test_a_foreign_prefill_leg_can_be_the_whole_answer(
    finish: str, generated: tuple[int, ...]
) -> None:
    request = msgspec.structs.replace(REQUEST, generated=generated)
    async with raw_server([SSE, *foreign_end(finish), DONE, END]) as server:
        said = await ask(server, HOLD, request, ours=False)
    assert TokenEvent((7,), FinishReason(finish)) in said


async def test_a_foreign_answer_need_not_be_streamed() -> None:
    last = {"choices": [{"token_ids": [7], "finish_reason": "length"}]}
    whole = answer(200, last | {"kv_transfer_params": PARAMS})
    said = await answers(whole, leg=HOLD, ours=False)
    assert [type(event) for event in said] == [TicketEvent, EndEvent]
