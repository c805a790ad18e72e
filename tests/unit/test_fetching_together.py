"""What several prompts get that wait for the same KV of another node's cache."""

from api.generator import PromptEvent, StageEvent, TicketEvent
from engine.request import RequestId
from tests.unit.test_fetching import Two, admitted


def test_the_choices_of_a_request_fetch_once() -> None:
    two = Two()
    for name in ("one", "two", "three"):
        two.submit(name)
    news = two.turn(16)
    assert sorted(event.fetched_tokens for event in admitted(news)) == [0, 0, 88]
    assert {event.cached_tokens for event in admitted(news)} == {88}
    assert two.sink.blocks_copied == 22
    assert len([event for _, event in news if isinstance(event, TicketEvent)]) == 3


def test_who_joins_a_fetch_has_waited_from_then_on() -> None:
    """A stage of less than no time would end the node that counts it."""
    two = Two()
    two.submit("one")
    two.turn(2, answering=False)
    two.now += 0.25
    two.submit("two")
    news = two.turn(16)
    said = {
        (name, event.stage): event.seconds
        for name, event in news
        if isinstance(event, StageEvent) and event.stage in ("fetch", "queue")
    }
    assert said == {
        ("one", "fetch"): 0.25,
        ("two", "fetch"): 0.0,
        ("one", "queue"): 0.0,
        ("two", "queue"): 0.0,
    }


def test_if_the_first_choice_leaves_the_others_get_what_it_fetched() -> None:
    two = Two()
    for name in ("one", "two"):
        two.submit(name)
    two.turn(2)
    two.node.abort(RequestId("one"))
    assert admitted(two.turn(14)) == [PromptEvent(88, fetched_tokens=88)]
