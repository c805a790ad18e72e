"""A fetch that its own side gave up says nothing about the node that was asked."""

from types import SimpleNamespace
from typing import Any

from api.generator import PromptEvent
from engine.request import RequestId
from kv_transfer.errors import TicketInUse
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


def test_a_pull_that_cannot_begin_leaves_no_block_on_either_side() -> None:
    two = Two()
    sink = two.sink

    def pull(*_: object, **__: object) -> None:
        raise TicketInUse("another pull has it")

    refusing: Any = SimpleNamespace(
        request_loan=sink.request_loan, loans=sink.loans, abandon=sink.abandon, pull=pull
    )
    two.fetcher.sink = refusing
    two.submit()
    assert admitted(two.turn(8)) == [PromptEvent(0)]
    two.node.abort(RequestId("r"))
    two.all_back()
