"""Fetches that end with nothing: by this side, by the other one, or because they took too long.

A fetch that its own side gave up says nothing about the node that was asked.
"""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from api.generator import PromptEvent
from decode_node import fetching
from decode_node.fetching import LEFT_ALONE_S, MOST_WAIT_S, CacheFetcher
from engine.request import Request, RequestId
from kv_transfer.errors import TicketInUse
from kv_transfer.local.faults import Delay, Fault, On
from kv_transfer.ticket import CacheHint
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


def test_a_pull_that_takes_too_long_is_not_waited_for_and_leaves_nothing() -> None:
    """It ends later, when its prompt waits no more."""
    two = Two()
    two.sink.faults = deque([On("read", Delay(2 * MOST_WAIT_S))])
    two.submit()
    while not two.used()[1]:
        two.turn()
    two.turn()
    two.now += MOST_WAIT_S
    assert admitted(two.turn()) == [PromptEvent(0)]
    assert two.fetcher._pulling
    two.now += MOST_WAIT_S
    two.turn(3)
    assert not two.fetcher._pulling
    two.node.abort(RequestId("r"))
    two.all_back()


def test_a_node_whose_kv_did_not_arrive_is_not_asked_for_a_while() -> None:
    two = Two()
    two.sink.faults = deque([On("read", Fault.CUT)])
    two.submit()
    assert admitted(two.turn(16)) == [PromptEvent(0)]
    two.node.abort(RequestId("r"))
    two.turn(2)
    assert not is_asked(two.fetcher, "d", 300)
    two.now += LEFT_ALONE_S
    assert is_asked(two.fetcher, "d", 300)


def test_of_many_nodes_that_are_left_alone_the_latest_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching, "MOST_LEFT_ALONE", 2)
    two = Two()
    for first, name in enumerate(("a", "b")):
        assert is_asked(two.fetcher, name, 100 * first)
        give_up(two)
    two.now += LEFT_ALONE_S
    for first, name in enumerate(("a", "c")):
        assert is_asked(two.fetcher, name, 100 * first + 50)
        give_up(two)
    assert len(two.fetcher._left_alone) == 2
    assert not is_asked(two.fetcher, "a", 0)
    assert not is_asked(two.fetcher, "c", 0)


def give_up(two: Two) -> None:
    two.now += MOST_WAIT_S
    assert two.fetcher.collect()


def is_asked(fetcher: CacheFetcher, node: str, first: int) -> bool:
    """For a prompt that begins with this token."""
    request = Request(RequestId(f"{node}-{first}"), tuple(range(first, first + 90)))
    return fetcher.start(request, CacheHint(node, "host", 1, "fake"))
