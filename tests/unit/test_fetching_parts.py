"""What is fetched beside what is here already, and beside what other prompts fetch."""

import pytest

from api.generator import PromptEvent, TokenEvent
from decode_node.fetching import MOST_WAIT_S
from engine.request import Request, RequestId, Sampling
from kv_transfer.api import Arrived, Sealed, TransferStats
from tests.fakes.model import alone
from tests.unit.test_fetching import HOLD, PROMPT, Two, admitted

OTHER = tuple(range(200, 290))


def run(two: Two, name: str, tokens: tuple[int, ...], *, at: str = "ours") -> None:
    """So that it is in the prefix cache."""
    engine = two.ours if at == "ours" else two.theirs
    engine.generate(Request(RequestId(name), tokens, Sampling(1)))
    while engine.turn().num_tokens:
        pass


def test_only_what_is_missing_is_fetched_and_goes_behind_the_rest() -> None:
    two = Two()
    run(two, "before", PROMPT[:22])  # 5 full blocks
    two.submit()
    news = two.turn(14)
    assert admitted(news) == [PromptEvent(88, fetched_tokens=68)]
    assert two.sink.blocks_copied == 17
    said = [token for _, e in news if isinstance(e, TokenEvent) for token in e.tokens]
    assert said == alone(Request(RequestId("r"), PROMPT, Sampling(1)))
    two.node.abort(RequestId("r"))
    two.all_back()


def test_blocks_that_were_here_and_are_gone_by_then_leave_the_prompt_to_be_computed() -> None:
    two = Two(blocks=40)
    run(two, "before", PROMPT[:22])
    two.submit()
    two.turn(2, answering=False)
    run(two, "large", tuple(range(300, 455)))  # takes the cache for itself
    assert two.ours.known(two.ours.keys(Request(RequestId("x"), PROMPT))) < 5
    assert [event.fetched_tokens for event in admitted(two.turn(14))] == [0]
    assert two.sink.blocks_copied == 0
    two.node.abort(RequestId("r"))
    two.all_back()


def test_what_was_fetched_is_told_from_its_first_token_on() -> None:
    two = Two()
    run(two, "before", PROMPT[:22])
    two.submit()
    while not two.fetcher._done:
        two.lending.prepare()
        assert not two.node.decode.collect()
        for loan in two.sink.loans():
            two.fetcher._take(loan)
    (told,) = two.fetcher.collect()
    assert (told.start, told.num_tokens) == (20, 68)


def test_a_fetch_that_has_ended_in_time_is_never_late() -> None:
    two = Two()
    two.submit()
    assert admitted(two.turn(14)) == [PromptEvent(88, fetched_tokens=88)]
    two.now += MOST_WAIT_S
    two.turn()
    two.submit("next", (5, *PROMPT))
    assert two.node.has_waiting_legs  # it asks, as the node that lent was not late


def test_prompts_that_differ_fetch_each_its_own() -> None:
    two = Two()
    run(two, "before that", OTHER, at="theirs")
    two.submit("one")
    two.submit("other", OTHER)
    news = two.turn(24)
    assert admitted(news) == [PromptEvent(88, fetched_tokens=88)] * 2
    assert two.sink.blocks_copied == 44


def test_who_leaves_just_as_its_blocks_have_come_hears_nothing_of_them() -> None:
    two = Two()
    for name in ("one", "two"):
        two.submit(name)
    while not two.used()[1]:
        two.turn()
    (ticket_id,) = two.fetcher._pulling
    two.fetcher.handle_arrival(Arrived(ticket_id, Sealed(88, 0, b""), stats=TransferStats()))
    two.fetcher.abort(RequestId("one"))
    assert [done.request_id for done in two.fetcher.collect()] == ["two"]


@pytest.mark.parametrize(("paces", "half_s"), [((0.01, 0.02), 0.484), ((0.02, 0.01), 0.836)])
def test_the_pace_of_a_node_is_that_of_its_latest_batches(
    paces: tuple[float, ...], half_s: float
) -> None:
    two = Two()
    for pace in paces:
        two.fetcher.record_pace(100, 100 * pace)
    two.fetcher.record_pace(3, 60.0)  # too small a batch to say anything
    two.submit(leg=HOLD)
    two.now += half_s - 0.01
    assert not admitted(two.turn(answering=False))
    two.now += 0.02
    assert admitted(two.turn(answering=False))
