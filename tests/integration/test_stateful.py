"""What a model keeps beside KV goes where the KV goes, and is computed once."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.generator import TokenEvent
from engine.errors import RequestTooLong
from engine.request import Request, RequestId, Sampling
from engine.scheduling.watermark import Watermark
from kv_transfer.local.faults import Fault, On
from tests.fakes.cluster import Cluster
from tests.fakes.decoding import Pair, sealed_for
from tests.fakes.model import alone
from tests.fakes.stateful import StatefulEngine

PROMPT = tuple(range(10))


def request(name: str, length: int, most: int = 6) -> Request:
    tokens = tuple(len(name) + token % 7 for token in range(length))
    return Request(RequestId(name), tokens, Sampling(most))


def run(engine: StatefulEngine, asked: Sequence[Request]) -> list[list[int]]:
    answers = {one.request_id: list[int]() for one in asked}
    for one in asked:
        engine.generate(one)
    while engine.load.running or engine.load.waiting:
        for sampled in engine.turn().sampled:
            answers[sampled.request_id] += sampled.tokens
    assert engine.load.free_blocks == engine.load.total_blocks
    return list(answers.values())


async def test_a_state_is_moved_behind_its_kv() -> None:
    cluster = Cluster(engine=lambda: StatefulEngine(block_size=4, state_blocks=3))
    asked = Request(RequestId("r"), PROMPT, Sampling(5))
    assert await cluster.ask(asked) == alone(asked)
    assert not cluster.suspects
    assert cluster.sinks[0].blocks_copied == 3 + 3


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CORRUPT])
async def test_a_state_that_is_lost_is_computed_again(fault: Fault) -> None:
    cluster = Cluster(engine=lambda: StatefulEngine(block_size=4))
    cluster.sinks[0].faults.append(On("read", fault))
    asked = Request(RequestId("r"), PROMPT, Sampling(5))
    assert await cluster.ask(asked) == alone(asked)
    cluster.expire()
    assert cluster.leaked_blocks == 0


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    chunk=st.integers(1, 16),
    state_blocks=st.integers(1, 4),
)
def test_any_batch_says_what_each_says_alone(
    lengths: list[int], chunk: int, state_blocks: int
) -> None:
    engine = StatefulEngine(blocks=13, block_size=4, chunk=chunk, state_blocks=state_blocks)
    engine.sequences.watermark = Watermark(0.0, learns=False)
    asked = [request(str(number), length) for number, length in enumerate(lengths)]
    assert run(engine, asked) == [alone(one) for one in asked]


def test_preempted_states_begin_anew() -> None:
    engine = StatefulEngine(blocks=9, block_size=4, state_blocks=2)
    engine.sequences.watermark = Watermark(0.0, learns=False)
    asked = [request("a", 6, most=12), request("b", 6, most=12)]
    assert run(engine, asked) == [alone(one) for one in asked]
    assert engine.load.preemptions > 0


def test_a_state_takes_its_blocks_with_the_first_ones() -> None:
    engine = StatefulEngine(blocks=10, block_size=4, state_blocks=3, saves=9)
    engine.generate(request("a", 8, most=1))
    engine.generate(request("b", 8, most=1))
    engine.generate(request("c", 8, most=1))
    engine.schedule()
    assert (engine.load.running, engine.load.free_blocks) == (2, 0)


def test_what_never_fits_beside_its_state_is_refused() -> None:
    engine = StatefulEngine(blocks=10, block_size=4, state_blocks=3)
    engine.generate(request("fits", 28, most=0))
    with pytest.raises(RequestTooLong, match="29 tokens never fit"):
        engine.generate(request("large", 29, most=0))


def test_a_state_whose_first_token_is_of_no_use_is_computed_here() -> None:
    """Its last token cannot be computed once more."""
    pair, asked = (
        Pair(state_blocks=1),
        Request(RequestId("r"), (1, 2), Sampling(2, temperature=1.0, seed=7)),
    )
    theirs = Request(RequestId("r"), (1, 2), Sampling(2, temperature=1.0, seed=8))
    ticket = pair.source.offer("r")
    pair.source.extend(ticket.ticket_id, [0, 1])
    pair.source.seal(ticket.ticket_id, sealed_for(theirs, first_token=33))
    pair.submit(asked, ticket)
    said = [event.tokens for _, event in pair.tick(8) if isinstance(event, TokenEvent)]
    assert [token for tokens in said for token in tokens] == alone(asked)
    assert pair.engine.computed == 3
    assert pair.used_blocks == 0
