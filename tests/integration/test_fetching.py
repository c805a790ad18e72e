"""A long chat is never computed twice: prefill fetches what decode generated before."""

from collections import deque

import pytest

from api.generator import Event, PromptEvent, StageEvent, TokenEvent
from engine.request import Request, RequestId, Sampling
from kv_transfer.local.faults import Fault, Kind, On
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.node import FakeNode, Ill

BLOCK = 4
PROMPT = tuple(range(100))
ANSWER = 72
NEW = (7,) * 5


def large() -> FakeEngine:
    return FakeEngine(blocks=256)


def engine_of(node: FakeNode) -> FakeEngine:
    assert isinstance(node.engine, FakeEngine)
    return node.engine


def turn(prompt: tuple[int, ...], most: int = ANSWER, salt: str = "") -> Request:
    return Request(RequestId("r"), prompt, Sampling(most), cache_salt=salt)


def second(first: Request) -> Request:
    return turn((*first.prompt, *alone(first), *NEW), 4, first.cache_salt)


async def computed_for(cluster: Cluster, request: Request) -> tuple[int, list[Event]]:
    """Ask, check the answer; what all prefill nodes computed for it."""
    before = sum(engine_of(node).computed for node in cluster.prefills)
    events = [event async for event in cluster.door.stream(request)]
    said = [t for event in events if isinstance(event, TokenEvent) for t in event.tokens]
    assert said == alone(request)
    return sum(engine_of(node).computed for node in cluster.prefills) - before, events


def prompted(events: list[Event]) -> PromptEvent:
    return next(event for event in events if isinstance(event, PromptEvent))


def nothing_leaked(cluster: Cluster) -> None:
    cluster.expire()
    assert cluster.leaked_blocks == 0
    for node in cluster.nodes.values():
        if not node.dead:
            engine_of(node).kv.check()


async def test_the_second_turn_computes_only_what_is_new() -> None:
    cluster, first = Cluster(engine=large), turn(PROMPT)
    assert (await computed_for(cluster, first))[0] == 100
    computed, events = await computed_for(cluster, second(first))
    assert computed == 177 - 168  # 5 new ones, and what does not fill a block
    told = prompted(events)
    assert (told.cached_tokens, told.fetched_tokens) == (168, 68)  # 100 were known here
    (fetch,) = [e for e in events if isinstance(e, StageEvent) and e.stage == "fetch"]
    assert fetch.num_bytes == 17 * engine_of(cluster.prefills[0]).kv_regions[0].block_bytes
    nothing_leaked(cluster)


async def test_a_prefill_node_that_never_saw_the_chat_fetches_all_of_it() -> None:
    cluster, first = Cluster(x=2, engine=large), turn(PROMPT)
    await computed_for(cluster, first)
    computed, events = await computed_for(cluster, second(first))
    assert computed == 9
    assert prompted(events).fetched_tokens == 168
    assert sorted(engine_of(node).computed for node in cluster.prefills) == [9, 100]
    nothing_leaked(cluster)


async def test_a_third_turn_needs_no_fetch_for_what_the_second_has_brought() -> None:
    cluster, first = Cluster(engine=large), turn(PROMPT)
    await computed_for(cluster, first)
    await computed_for(cluster, second(first))
    computed, events = await computed_for(cluster, second(second(first)))
    assert computed < 20
    assert prompted(events).fetched_tokens == 0
    assert not [e for e in events if isinstance(e, StageEvent) and e.stage == "fetch"]


async def test_another_salt_finds_nothing() -> None:
    cluster, first = Cluster(engine=large), turn(PROMPT, salt="mine")
    await computed_for(cluster, first)
    asked = turn(second(first).prompt, 4, "yours")
    assert (await computed_for(cluster, asked))[0] == 177
    nothing_leaked(cluster)


async def test_an_answer_that_comes_back_in_other_words_is_used_up_to_there() -> None:
    cluster, first = Cluster(engine=large), turn(PROMPT)
    await computed_for(cluster, first)
    said = alone(first)
    said[66:] = [999, 998]
    computed, events = await computed_for(cluster, turn((*PROMPT, *said, *NEW), 4))
    assert prompted(events).fetched_tokens == 64
    assert computed == 100 + 68 + 5 - 164
    nothing_leaked(cluster)


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.CUT])
@pytest.mark.parametrize("message", ["ask", "look", "settle", "hello"])
async def test_a_fetch_that_fails_is_computed(message: Kind, fault: Fault) -> None:
    cluster, first = Cluster(engine=large, turn_s=0.01), turn(PROMPT)
    await computed_for(cluster, first)
    cluster.prefills[0].sink.faults = deque([On(message, fault)])
    cluster.beat()
    computed, events = await computed_for(cluster, second(first))
    assert computed in (9, 77)  # a Look that is lost is said again
    assert prompted(events).cached_tokens == 177 - computed
    assert not cluster.suspects
    nothing_leaked(cluster)


@pytest.mark.parametrize("ill", [Ill.KILL, Ill.STALL])
async def test_a_node_that_does_not_answer_holds_nobody_up_for_long(ill: Ill) -> None:
    cluster, first = Cluster(y=2, engine=large, turn_s=0.01), turn(PROMPT)
    await computed_for(cluster, first)
    cluster.decodes[0].suffer(ill)
    cluster.beat()
    begun = cluster.now
    computed, events = await computed_for(cluster, second(first))
    assert computed == 77
    assert cluster.now - begun < 1.5
    assert prompted(events).fetched_tokens == 0
    nothing_leaked(cluster)


@pytest.mark.parametrize("x", [1, 2])
@pytest.mark.parametrize("remembered", [False, True])
async def test_each_turn_of_a_chat_computes_its_own_tokens_only(
    x: int, remembered: bool
) -> None:
    """Six turns: 50 new tokens and an answer of 150; with two nodes, prefill takes turns."""
    cluster = Cluster(x=x, engine=lambda: FakeEngine(blocks=2048))
    if not remembered:
        cluster.pipeline.conversations.most = 0
    tokens, computed = tuple(range(200)), list[int]()
    for number in range(6):
        asked = turn(tokens, 150)
        computed.append((await computed_for(cluster, asked))[0])
        tokens = (*tokens, *alone(asked), *range(900 + number, 950 + number))
    without = 200 if x == 1 else 400
    assert computed == [200, *[52 if remembered else without] * 5]
    nothing_leaked(cluster)
