"""A fetch that its own side gave up says nothing about the node that was asked."""

from api.generator import PromptEvent
from engine.request import RequestId
from tests.unit.test_fetching import Two, admitted


def test_who_aborts_a_fetch_does_not_blame_the_other_node() -> None:
    two = Two()
    two.submit()
    while not two.used()[1]:
        two.turn()
    two.node.abort(RequestId("r"))
    two.turn(3)
    two.submit("next")
    assert admitted(two.turn(12)) == [PromptEvent(88, fetched_tokens=88)]
