"""A node of vLLM that answers nonsense, or all but the end of an answer."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest

from discovery.registration import Registration, Role
from tests.fakes.http_cluster import HttpCluster
from tests.fakes.raw_http import (
    CUT,
    END,
    HANG,
    JSON,
    SSE,
    RawServer,
    Step,
    chunk,
    events,
    raw_server,
)
from tests.fakes.vllm_cluster import PATIENCE_S, ask, behind, golden, tokens_of
from tests.fakes.vllm_node import Network, VllmNode

BOTH = 2  # nodes, asked in turn
BROKEN = {"error": {"message": "Internal server error", "code": 500}}
DONE = chunk(b"data: [DONE]\n\n")


def said(*tokens: int) -> list[bytes]:
    return [SSE, *events(*({"choices": [{"token_ids": [one]}]} for one in tokens))]


@asynccontextmanager
async def beside(
    *script: Step, part_s: float = PATIENCE_S
) -> AsyncGenerator[tuple[HttpCluster, RawServer]]:
    """The proxy before a node that answers well, and one that answers this, once."""
    well = VllmNode(Role.DECODE, Network())
    async with raw_server(script) as other, behind(well, foreign_part_s=part_s) as proxy:
        proxy.registry.apply(Registration(Role.DECODE, other.address, ""), now=time.monotonic())
        yield proxy, other


@pytest.mark.parametrize("token", [-1, 2**31, 10**30])
@pytest.mark.parametrize("stream", [True, False])
async def test_numbers_that_are_no_tokens_are_generated_elsewhere(
    token: int, stream: bool
) -> None:
    async with beside(*said(golden()[0], token), DONE, END) as (proxy, other):
        for _ in range(BOTH):
            if stream:
                body = {"prompt": [7, 3, 11, 19, 5], "max_tokens": 6, "stream": True}
                status, data = await proxy.post("/v1/completions", body)
                assert (status, b'"error"' in data) == (200, False)
            else:
                assert tokens_of(await ask(proxy)) == golden()
        assert other.bodies


@pytest.mark.parametrize("end", [(CUT,), (*events(BROKEN), DONE, END)], ids=["cut", "told"])
async def test_no_other_node_is_asked_for_the_mere_end_of_an_answer(
    end: tuple[Step, ...],
) -> None:
    """It would be asked for no tokens at all, which no node accepts."""
    async with beside(*said(*golden()), *end) as (proxy, other):
        for _ in range(BOTH):
            answer = await ask(proxy)
            assert tokens_of(answer) == golden()
            assert answer["choices"][0]["finish_reason"] == "length"
        assert other.bodies


def pour(head: bytes) -> Iterator[Step]:
    """More of one answer than there can be."""
    yield head
    while True:
        yield chunk(b"x" * (1 << 20))


@pytest.mark.parametrize(
    "script",
    [
        [*said(golden()[0]), chunk(b'data: {"choices": [{"token'), HANG],
        [JSON, chunk(b'{"choices": [{"token_ids": [1, 2'), HANG],
    ],
    ids=["event", "answer"],
)
async def test_an_answer_that_never_ends_comes_from_elsewhere(script: list[Step]) -> None:
    """It drips, or hangs in the middle of what vLLM writes at once: that is silence."""
    async with beside(*script, part_s=0.05) as (proxy, other):
        for _ in range(BOTH):
            assert tokens_of(await ask(proxy)) == golden()
        assert other.bodies
        assert proxy.health.has_failures


@pytest.mark.parametrize("head", [SSE, JSON], ids=["event", "answer"])
async def test_an_answer_without_bounds_comes_from_elsewhere(head: bytes) -> None:
    async with beside() as (proxy, other):
        other.scripts[0] = pour(head)
        for _ in range(BOTH):
            assert tokens_of(await ask(proxy)) == golden()
        assert other.bodies
        assert proxy.health.has_failures
        async with asyncio.timeout(PATIENCE_S):
            await other.left.wait()


async def test_tokens_beyond_those_that_were_asked_for_are_given_up() -> None:
    async with beside(*said(*golden(), *golden()), HANG) as (proxy, other):
        for _ in range(BOTH):
            assert tokens_of(await ask(proxy)) == golden()
        assert other.bodies
