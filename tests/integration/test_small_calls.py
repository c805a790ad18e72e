"""Calls of nodes beside requests: whatever is answered, it is an answer, or none."""

import asyncio
import gzip

import pytest

from discovery.node import Node
from discovery.orders import OrderResult
from discovery.registration import Registration, Role, State
from discovery.signed_calls import REFUSED
from proxy.nodes import orders
from proxy.nodes.orders import OrderFailed, OrderSender
from proxy.nodes.session import (
    LONGEST_ANSWER,
    SignatureRejected,
    bearer_header,
    get_json,
    open_session,
)
from tests.fakes.raw_http import CUT, HANG, PATIENCE_S, Step, answer, chunk, raw_server

CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PACKED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n"
ZIPPED = gzip.compress(b"{}")
RESULT = OrderResult("n0", Role.DECODE, State.DRAINING, None, 2, 5)
TOLD = {
    "node_id": "n0",
    "role": "D",
    "state": "draining",
    "wanted": None,
    "in_flight": 2,
    "kv_blocks_used": 5,
}
ELSEWHERE = b"HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"


async def told(*script: Step) -> object:
    async with asyncio.timeout(PATIENCE_S), raw_server(script) as server, open_session() as one:
        return await get_json(one, server.address, "/path")


@pytest.mark.parametrize(
    "script",
    [
        [answer(404, {"a": 1})],
        [answer(401, {"error": {"message": "no", "code": "other"}})],
        [answer(500, {"error": {"message": "no", "code": REFUSED}})],
        [ELSEWHERE],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", CUT],
        [CHUNKS, *[chunk(b" " * 65_536)] * (LONGEST_ANSWER // 65_536), chunk(b"  "), HANG],
        [b"nonsense\r\n\r\n", CUT],
        [PACKED + b"Content-Length: %d\r\n\r\n" % len(ZIPPED) + ZIPPED],
        [CUT],
    ],
    ids=["404", "401", "500", "302", "json", "deep", "cut", "long", "http", "zip", "gone"],
)
async def test_a_page_that_is_none(script: list[Step]) -> None:
    assert await told(*script) is None


async def test_a_page_is_json_in_however_many_pieces() -> None:
    pieces = [chunk(b'{"a"'), chunk(b":"), chunk(b"1}"), b"0\r\n\r\n"]
    assert await told(CHUNKS, *pieces) == {"a": 1}


async def test_a_node_sends_the_proxy_nowhere() -> None:
    """Least of all with a key."""
    there = b"HTTP/1.1 307 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    async with raw_server([there], [answer(200, {})]) as server, open_session() as session:
        assert await get_json(session, server.address, "/path") is None
        assert len(server.heads) == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_a_node_that_does_not_let_the_proxy_in_says_why(status: int) -> None:
    with pytest.raises(SignatureRejected, match="the clock differs"):
        await told(answer(status, {"error": {"message": "the clock differs", "code": REFUSED}}))


@pytest.mark.parametrize("key", [None, "the key"])
async def test_nodes_of_vllm_get_their_key_and_pack_nothing(key: str | None) -> None:
    async with raw_server([answer(200, {})]) as server, open_session(key) as session:
        await get_json(session, server.address, "/path", {"X-Signed": "so"})
    head = server.heads[0]
    assert head.startswith("GET /path HTTP/1.1\r\n")
    assert "\r\nX-Signed: so\r\n" in head
    assert "\r\nAccept-Encoding: identity\r\n" in head
    assert ("\r\nAuthorization: Bearer the key\r\n" in head) == (key is not None)
    assert bearer_header(key) == ({"Authorization": "Bearer the key"} if key else {})


async def order(*script: Step) -> OrderResult:
    async with asyncio.timeout(PATIENCE_S), raw_server(script) as server, open_session() as one:
        node = Node(Registration(Role.DECODE, server.address, "", "n0"), heard_at=0)
        return await OrderSender(one).send(node, state=State.DRAINING)


async def test_an_order_that_was_carried_out() -> None:
    assert await order(answer(200, TOLD)) == RESULT


@pytest.mark.parametrize(
    ("script", "refused", "reason"),
    [
        ([answer(409, {"message": "it is the last"})], True, "it is the last"),
        ([answer(409, {})], True, "it answered with status 409"),
        ([answer(500, {"message": "oops"})], False, "oops"),
        ([answer(500, [])], False, "it answered with status 500"),
        ([answer(200, {"message": "done"})], False, "it answered with status 200"),
        ([ELSEWHERE], False, "it answered with status 302"),
        ([CUT], False, "disconnected"),
        ([answer(200, "x" * orders.LONGEST_ANSWER)], False, "more than 65536 bytes"),
    ],
)
async def test_an_order_that_was_not(script: list[Step], refused: bool, reason: str) -> None:
    with pytest.raises(OrderFailed) as failed:
        await order(*script)
    assert reason in str(failed.value)
    assert failed.value.refused is refused
