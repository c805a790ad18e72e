"""Calls of nodes of vLLM: over which connections they go, and what their failures mean."""

from collections.abc import Iterable, Iterator

import pytest

from api.generator import WHOLE, FailedEvent, Leg, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import FinishReason, PoolingRequest, Request, RequestId, Sampling
from kv_transfer.ticket import KvTicket
from proxy.errors import Cause, NodeFailed
from proxy.foreign.bodies import COMPLETIONS, GENERATE
from proxy.foreign.vllm_nodes import VllmNodes
from proxy.nodes.client import HttpNodeClient
from proxy.nodes.connection_pool import open_connections
from tests.fakes.raw_http import (
    CUT,
    END,
    HANG,
    JSON,
    SSE,
    RawServer,
    Step,
    answer,
    chunk,
    events,
    raw_server,
)

REQUEST = Request(RequestId("r"), (1, 2, 3), Sampling(4))
DONE = chunk(b"data: [DONE]\n\n")
WELL = [SSE, *events({"choices": [{"token_ids": [8], "finish_reason": "length"}]}), DONE, END]
TOLD = [SSE, *events({"error": {"message": "KV load failure", "code": 500}}), DONE, END]
HOLD = Leg(hold=True)
WHERE = {"remote_engine_id": "e", "remote_host": "h", "remote_port": 1}
PUSHED = KvTicket("t", "e", "h", 1, None, verbatim=WHERE | {"transfer_mode": "push"})


def at(server: RawServer, role: Role = Role.DECODE) -> Node:
    return Node(Registration(role, server.address, "", model="m"), heard_at=0)


def paths(server: RawServer) -> Iterable[str]:
    return [head.split(" ")[1] for head in server.heads]


async def test_an_endpoint_that_is_missing_costs_no_connection() -> None:
    async with (
        raw_server([answer(404, {})], WELL, WELL) as server,
        open_connections() as lines,
    ):
        client = HttpNodeClient(lines)
        for _ in range(2):
            stream = client.generate(at(server), REQUEST, WHOLE)
            said = [event async for event in stream]
            assert said == [TokenEvent((8,), FinishReason.LENGTH)]
    assert paths(server) == [GENERATE, COMPLETIONS, COMPLETIONS]
    assert server.connections == 1


async def test_a_node_that_has_neither_endpoint_is_asked_for_both_again() -> None:
    missing = [answer(404, {})]
    async with (
        raw_server(missing, missing, missing, WELL) as server,
        open_connections() as lines,
    ):
        client = HttpNodeClient(lines)
        with pytest.raises(NodeFailed) as failed:
            await anext(client.generate(at(server), REQUEST, WHOLE))
        assert (failed.value.cause, failed.value.retryable) == (Cause.REFUSED, True)
        assert [event async for event in client.generate(at(server), REQUEST, WHOLE)]
    assert paths(server) == [GENERATE, COMPLETIONS] * 2


@pytest.mark.parametrize("script", [TOLD, [answer(500, {})], [SSE, CUT]])
@pytest.mark.parametrize("leg", [HOLD, Leg(ticket=PUSHED)])
async def test_a_leg_that_fails_is_a_reason_to_ask_anew_where_kv_comes_from(
    script: list[Step], leg: Leg
) -> None:
    """The other node may have been started anew, with another engine."""
    nodes, prefill = VllmNodes(), Node(Registration(Role.PREFILL, "p:1", ""), heard_at=0)
    async with raw_server(script) as server, open_connections() as lines:
        asked = at(server, Role.PREFILL) if leg.hold else at(server)
        for one in (prefill, asked):
            nodes.learn_ticket(one, nodes.hand_over(one, HOLD, "outer"), PUSHED)
        client = HttpNodeClient(lines, vllm_nodes=nodes)
        try:
            said = [event async for event in client.generate(asked, REQUEST, leg)]
            assert isinstance(said[-1], FailedEvent)
        except NodeFailed:
            assert script is not TOLD
    assert (nodes.hand_over(prefill, HOLD, "next").ticket is None) == (not leg.hold)
    assert nodes.hand_over(asked, HOLD, "next").ticket is None


@pytest.mark.parametrize(
    "script",
    [
        [b"HTTP/1.1 200 OK\r\nX: ", HANG],
        [SSE, chunk(b'data: {"choices": [{"token'), HANG],
        [JSON + chunk(b'{"choices": [{"token_ids"'), HANG],
        [JSON.replace(b"200", b"500") + chunk(b'{"error": {"message"'), HANG],
    ],
    ids=["head", "event", "answer", "refusal"],
)
async def test_what_such_a_node_has_begun_it_has_to_end(script: list[Step]) -> None:
    """It may be silent for any time, but not within what it writes at once."""
    async with raw_server(script) as server, open_connections() as lines:
        client = HttpNodeClient(lines, foreign_part_s=0.05)
        with pytest.raises(NodeFailed, match="silent") as failed:
            await anext(client.generate(at(server), REQUEST, WHOLE))
        assert failed.value.cause is Cause.SILENT


def pour() -> Iterator[Step]:
    yield JSON
    while True:
        yield chunk(b" " * (1 << 20))


async def test_an_answer_without_bounds_is_not_kept_whatever_was_asked_for() -> None:
    async with raw_server(pour(), pour(), pour()) as server, open_connections() as lines:
        client = HttpNodeClient(lines)
        with pytest.raises(NodeFailed, match="more than") as failed:
            await client.pool(at(server), [PoolingRequest(RequestId("r"), (1, 2, 3))])
        assert failed.value.cause is Cause.BROKEN
        with pytest.raises(NodeFailed, match="more than") as failed:
            await anext(client.generate(at(server), REQUEST, WHOLE))
        assert failed.value.cause is Cause.BROKEN
        port = int(server.address.rpartition(":")[2])
        mooncake = Registration(Role.PREFILL, server.address, "", bootstrap_port=port)
        with pytest.raises(NodeFailed, match="more than") as failed:
            await anext(client.generate(Node(mooncake, heard_at=0), REQUEST, HOLD))
        assert failed.value.cause is Cause.BROKEN
