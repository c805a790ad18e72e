"""What is told to pdserve's nodes alone, and to vLLM's alone."""

from base64 import b64encode
from collections.abc import Iterable

import msgspec
import numpy as np
import pytest

from api.generator import WHOLE, Leg
from api.trace_context import TRACEPARENT, TraceContext
from discovery.node import Node
from discovery.registration import Registration, Role
from discovery.signed_calls import SIGNATURE, CallKey, Signing
from engine.request import PoolingRequest, Request, RequestId, Sampling
from proxy.errors import Cause, NodeFailed
from proxy.nodes.client import HttpNodeClient
from proxy.nodes.connection_pool import open_connections
from tests.fakes.raw_http import END, SSE, RawServer, answer, chunk, events, raw_server

REQUEST = Request(RequestId("r"), (1, 2, 3), Sampling(4))
TRACE = TraceContext("0" * 31 + "1", "0" * 15 + "1")
LAST = {"choices": [{"token_ids": [8], "finish_reason": "length"}]}
WELL = [SSE, *events(LAST), chunk(b"data: [DONE]\n\n"), END]
SIGNING = Signing(CallKey.of("the cluster's key"))
PAIR = PoolingRequest(RequestId("r"), (1, 2, 3), "classify", token_types=(0, 0, 1))
VECTOR = b64encode(np.array([1.0], "<f4").tobytes()).decode()


def at(server: RawServer, *, ours: bool) -> Node:
    name = "n0" if ours else None
    return Node(Registration(Role.DECODE, server.address, "", name, "m"), heard_at=0)


def names(head: str) -> Iterable[str]:
    return {line.partition(":")[0].lower() for line in head.split("\r\n")[1:]}


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("ours", [True, False])
async def test_headers_of_a_leg(traced: bool, signed: bool, ours: bool) -> None:
    async with raw_server(WELL) as server, open_connections() as lines:
        signing = SIGNING if signed else Signing()
        client = HttpNodeClient(lines, foreign_key="theirs", signing=signing)
        leg = Leg(trace=TRACE) if traced else WHOLE
        async for _ in client.generate(at(server, ours=ours), REQUEST, leg):
            pass
    found = names(server.heads[0])
    assert (TRACEPARENT in found) == traced
    assert (SIGNATURE.lower() in found) == (signed and ours)
    assert ("authorization" in found) == (not ours)
    assert ("x-request-id" in found) == (not ours)


@pytest.mark.parametrize("ours", [True, False])
async def test_headers_of_a_pooling_call(ours: bool) -> None:
    body = {"data": [{"index": 0, "data": VECTOR}]}
    async with raw_server([answer(200, body)]) as server, open_connections() as lines:
        client = HttpNodeClient(lines, foreign_key="theirs", signing=SIGNING)
        one = msgspec.structs.replace(PAIR, token_types=())
        (event,) = await client.pool(at(server, ours=ours), [one])
    assert event.width == 1
    found = names(server.heads[0])
    assert (SIGNATURE.lower() in found) == ours
    assert ("authorization" in found) == (not ours)


async def test_segments_of_a_pair_are_told_to_nodes_that_know_them() -> None:
    body = {"data": [{"index": 0, "data": VECTOR}]}
    async with raw_server([answer(200, body)]) as server, open_connections() as lines:
        client = HttpNodeClient(lines)
        await client.pool(at(server, ours=True), [PAIR])
        said = msgspec.json.decode(server.bodies[0])
        assert said["pdserve"] == {"token_types": [[0, 0, 1]]}
        with pytest.raises(NodeFailed, match="segments") as failed:
            await client.pool(at(server, ours=False), [PAIR])
        assert (failed.value.cause, failed.value.retryable) == (Cause.REFUSED, True)
        assert len(server.bodies) == 1
