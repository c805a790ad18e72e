"""Only what decode does not have is moved; what was moved once serves whoever comes next."""

import asyncio
from collections import deque

import pytest

from api.generator import (
    WHOLE,
    Event,
    Leg,
    PromptEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from engine.request import Request, RequestId, Sampling
from kv_transfer.local.faults import Fault
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.model import TOKEN_BYTES, alone
from tests.fakes.node import FakeNode, Ill

BLOCK = 4  # of the fake engine
BLOCK_BYTES = BLOCK * TOKEN_BYTES
PROMPT = tuple(range(32))


def request(prompt: tuple[int, ...], most: int = 2, name: str = "r", salt: str = "") -> Request:
    return Request(RequestId(name), prompt, Sampling(most), cache_salt=salt)


async def events_of(cluster: Cluster, asked: Request) -> list[Event]:
    return [event async for event in cluster.door.stream(asked)]


async def moved(cluster: Cluster, asked: Request) -> int:
    """Ask, check the answer, and count the bytes that were pulled for it."""
    events = await events_of(cluster, asked)
    said = [t for event in events if isinstance(event, TokenEvent) for t in event.tokens]
    assert said == alone(asked)
    pulls = [event for event in events if isinstance(event, StageEvent)]
    return sum(event.num_bytes for event in pulls if event.stage == "transfer")


def nothing_leaked(cluster: Cluster) -> None:
    cluster.expire()
    assert cluster.leaked_blocks == 0
    for node in cluster.nodes.values():
        engine_of(node).kv.check()


def engine_of(node: FakeNode) -> FakeEngine:
    assert isinstance(node.engine, FakeEngine)
    return node.engine


async def test_the_second_turn_moves_only_its_delta() -> None:
    cluster, first = Cluster(), request(PROMPT, most=10)
    assert await moved(cluster, first) == 8 * BLOCK_BYTES
    said = alone(first)
    second = request(
        (*PROMPT, *said, 7, 7, 7)
    )  # 45 tokens, of which decode has 40 in full blocks
    assert await moved(cluster, second) == 2 * BLOCK_BYTES
    assert await moved(cluster, request((*PROMPT[:16], 1, 2, 3))) == BLOCK_BYTES
    nothing_leaked(cluster)


@pytest.mark.parametrize("length", [BLOCK, 2 * BLOCK, 8 * BLOCK])
async def test_a_prompt_that_fills_its_blocks_moves_its_last_block_again(length: int) -> None:
    """Its last token may have to be computed anew, if prefill was asked otherwise: 38, 39."""
    cluster = Cluster()
    assert await moved(cluster, request(PROMPT[:length])) == length * TOKEN_BYTES
    assert await moved(cluster, request(PROMPT[:length])) == BLOCK_BYTES
    assert await moved(cluster, request(PROMPT[: length - 1])) == BLOCK_BYTES
    assert await moved(cluster, request((*PROMPT[:length], 1))) == BLOCK_BYTES
    nothing_leaked(cluster)


async def test_a_prompt_whose_first_token_ends_it_is_found_again() -> None:
    cluster = Cluster()
    await moved(cluster, request(PROMPT, most=1))
    assert await moved(cluster, request((*PROMPT, 1), most=1)) == BLOCK_BYTES
    nothing_leaked(cluster)


async def test_salts_keep_what_was_moved_apart() -> None:
    cluster = Cluster()
    await moved(cluster, request(PROMPT, salt="mine"))
    assert await moved(cluster, request(PROMPT, salt="yours")) == 8 * BLOCK_BYTES
    assert await moved(cluster, request(PROMPT, salt="mine")) == BLOCK_BYTES


@pytest.mark.parametrize("y", [1, 3])
async def test_four_choices_move_and_compute_their_prompt_once(y: int) -> None:
    """Whatever order their legs come in, and however many nodes there are."""
    cluster = Cluster(x=y, y=y)
    asked = [
        Request(RequestId(f"r-{n}"), (*PROMPT, 5), Sampling(6, temperature=1.0, sample_index=n))
        for n in range(4)
    ]
    answers = await asyncio.gather(*(events_of(cluster, one) for one in asked))
    for one, events in zip(asked, answers, strict=True):
        tokens = [t for event in events if isinstance(event, TokenEvent) for t in event.tokens]
        assert tokens == alone(one)
    stages = [e for events in answers for e in events if isinstance(e, StageEvent)]
    bytes_moved = [e.num_bytes for e in stages if e.stage == "transfer"]
    assert sorted(bytes_moved) == [BLOCK_BYTES] * 3 + [9 * BLOCK_BYTES]
    firsts = [next(e for e in events if isinstance(e, PromptEvent)) for events in answers]
    assert sorted(event.cached_tokens for event in firsts) == [0, 32, 32, 32]
    nothing_leaked(cluster)


async def test_a_pull_that_failed_publishes_nothing() -> None:
    """Some of its blocks had arrived: they may be stale, and are not to be found."""
    cluster = Cluster(engine=lambda: FakeEngine(chunk=8))
    prefill, decode = cluster.prefills[0].loop, cluster.decodes[0].loop
    prefill.submit(request(PROMPT), Leg(hold=True, keep_open=True), 0)
    (_, event), *_ = prefill.prepare()
    prefill.run()
    assert isinstance(event, TicketEvent)
    decode.submit(request(PROMPT, name="d"), Leg(ticket=event.ticket), 0)
    for _ in range(4):
        decode.prepare()
    assert cluster.sinks[0].blocks_copied == 2
    decode.abort(RequestId("d"))
    prefill.abort(RequestId("r"))
    cluster.settle()
    assert cluster.leaked_blocks == 0
    assert await moved(cluster, request(PROMPT)) == 8 * BLOCK_BYTES
    nothing_leaked(cluster)


async def test_a_retry_finds_the_blocks_of_its_first_try() -> None:
    """The decode node dies; what prefill has computed is there for the next one."""
    cluster, asked = Cluster(y=2), request((*PROMPT, 1), most=6)
    first = cluster.decodes[0]
    first.script[4] = Ill.KILL
    events = await events_of(cluster, asked)
    assert [t for e in events if isinstance(e, TokenEvent) for t in e.tokens] == alone(asked)
    assert first.dead
    assert engine_of(cluster.prefills[0]).computed < 33 + BLOCK + 6
    cached = [event.cached_tokens for event in events if isinstance(event, PromptEvent)]
    assert cached == [0]  # as the first try said, and never more than the prompt
    nothing_leaked(cluster)


async def test_a_reservation_keeps_what_it_found_from_being_evicted() -> None:
    """Between `reserve` and the pull's end others fill the cache: 5, 36, 39."""
    cluster = Cluster(engine=lambda: FakeEngine(blocks=24))
    await moved(cluster, request(PROMPT))
    cluster.sinks[0].faults = deque([Fault.DELAY] * 12)
    waits = asyncio.ensure_future(moved(cluster, request((*PROMPT, 1), name="waits")))
    for number in range(6):
        other = tuple(range(100 * number + 100, 100 * number + 120))
        await cluster.decodes[0].generate(request(other), WHOLE).__anext__()
    assert await waits == BLOCK_BYTES
    nothing_leaked(cluster)
