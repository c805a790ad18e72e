"""Log-probabilities are said once each, and beside the right token, whoever dies."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.generator import (
    EndEvent,
    Event,
    FailedEvent,
    Leg,
    PromptEvent,
    TicketEvent,
    TokenEvent,
)
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import FinishReason, Logprob, Request, RequestId, Sampling
from kv_transfer.ticket import KvTicket
from proxy.attempt.relay import Relay
from proxy.errors import NodeFailed
from proxy.routing.plan import Plan
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone, alone_likelihood
from tests.fakes.node import Ill

PROMPT = tuple(range(30))
FORETOLD = tuple((Logprob(token, 0.0, 1),) for token in PROMPT[1:])
SOME = (Logprob(7, -1.0, 1),)


def request(name: str = "r", *, ranks: int | None = 2, prompt: int | None = 0) -> Request:
    sampling = Sampling(8, seed=7, logprobs=ranks, prompt_logprobs=prompt)
    return Request(RequestId(name), PROMPT, sampling)


async def heard(cluster: Cluster, asked: Request) -> list[Event]:
    return [event async for event in cluster.door.stream(asked)]


def check(events: list[Event], asked: Request) -> None:
    said = [event for event in events if isinstance(event, TokenEvent)]
    assert [token for event in said for token in event.tokens] == alone(asked)
    assert [place for event in said for place in event.logprobs] == alone_likelihood(asked)
    before = events[: events.index(said[0])]
    prompts = [event for event in events if isinstance(event, PromptEvent)]
    told = [event.logprobs for event in prompts if event.logprobs]
    assert told == ([] if asked.sampling.prompt_logprobs is None else [FORETOLD])
    assert all(event in before for event in prompts)


@given(
    name=st.sampled_from(["p0", "p1", "d0", "d1"]),
    tick=st.integers(1, 25),
    ranks=st.sampled_from([None, 0, 2]),
    prompt=st.sampled_from([None, 0]),
)
async def test_any_node_at_any_tick(
    name: str, tick: int, ranks: int | None, prompt: int | None
) -> None:
    cluster = Cluster(2, 2, engine=lambda: FakeEngine(chunk=4))
    cluster.nodes[name].script[tick] = Ill.KILL
    asked = request(ranks=ranks, prompt=prompt)
    check(await heard(cluster, asked), asked)
    cluster.expire()
    assert cluster.leaked_blocks == 0


@pytest.mark.parametrize("x", [0, 1])
async def test_with_prefill_and_without(x: int) -> None:
    cluster, asked = Cluster(x=x), request()
    check(await heard(cluster, asked), asked)
    cluster.settle()
    assert cluster.leaked_blocks == 0


async def test_a_decode_node_that_fetches_a_prompt_does_not_run_it_for_its_likelihood() -> None:
    cluster, asked = Cluster(), request()
    await heard(cluster, asked)
    assert cluster.sinks[0].blocks_copied == 8


P, D = (Node(Registration(role, f"{role}:1", f"{role}:2"), 0.0) for role in Role)
WORD = TokenEvent((7, 8), logprobs=(SOME, SOME))
LAST = TokenEvent((9,), FinishReason.LENGTH, logprobs=(SOME,))


def said(relay: Relay, *news: tuple[Node, Event]) -> list[list[Event]]:
    return [list(relay.forward(node, event)) for node, event in news]


def test_a_quick_decode_leg_waits_for_what_is_told_of_the_prompt() -> None:
    relay, prompt = Relay(Plan(P, D), awaits_prompt_logprobs=True), PromptEvent(0, FORETOLD)
    assert said(relay, (D, WORD), (D, LAST)) == [[], []]
    assert not relay.finished
    assert said(relay, (P, PromptEvent(0))) == [[PromptEvent(0)]]
    assert said(relay, (P, prompt)) == [[prompt, WORD, LAST]]
    assert relay.finished
    assert said(relay, (P, TokenEvent((7,), logprobs=(SOME,)))) == [[]]


def test_it_does_not_wait_for_what_never_comes() -> None:
    relay = Relay(Plan(P, D), awaits_prompt_logprobs=True)
    assert said(relay, (D, WORD), (P, EndEvent()), (D, LAST)) == [[], [WORD], [LAST]]


def test_what_a_leg_repeats_is_left_out_with_all_that_is_told_of_it() -> None:
    relay, first = Relay(Plan(P, D)), TokenEvent((7,), logprobs=(SOME,))
    rest = TokenEvent((8,), logprobs=(SOME,))
    assert said(relay, (P, first), (D, WORD)) == [[first], [rest]]


def test_a_leg_that_goes_on_from_another_token_than_was_given_is_left() -> None:
    """It had to compute the prompt itself, and rounding brought it another first token."""
    relay = Relay(Plan(P, D))
    assert said(relay, (P, TokenEvent((6,)))) == [[TokenEvent((6,))]]
    with pytest.raises(NodeFailed, match="goes on from"):
        said(relay, (D, WORD))


def test_a_first_token_that_comes_late_is_not_compared() -> None:
    relay = Relay(Plan(P, D))
    assert said(relay, (D, WORD), (P, TokenEvent((6,)))) == [[WORD], []]


def test_what_only_prefill_could_tell_is_not_left_out_where_its_kv_was_not_taken() -> None:
    failed = FailedEvent("withdrawn", retryable=True, by_peer=True)
    assert said(Relay(Plan(P, D)), (P, failed)) == [[]]
    with pytest.raises(NodeFailed):
        said(Relay(Plan(P, D), awaits_prompt_logprobs=True), (P, failed))


class SlowToTell:
    """A prefill node that gives its ticket, and tells of the prompt when decode is over."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.asked: list[int | None] = []

    async def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        self.asked.append(request.sampling.prompt_logprobs)
        if node.role is Role.PREFILL:
            yield TicketEvent(KvTicket("t", "e", "h", 1, "f"))
            await self.over.wait()
            yield PromptEvent(0, FORETOLD)
        else:
            assert leg.ticket
            yield WORD
            self.over.set()
            yield LAST


async def test_the_prompts_likelihood_comes_first_however_quick_decode_is() -> None:
    cluster, client = Cluster(), SlowToTell()
    pipeline = replace(cluster.pipeline, client=client)
    async with asyncio.timeout(10):
        heard = [event async for event in pipeline.stream(request())]
    assert heard == [PromptEvent(0, FORETOLD), WORD, LAST]
    assert client.asked == [0, None]  # who fetches the prompt does not run it
