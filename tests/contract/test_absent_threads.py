"""A transfer thread may be stopped, starved or asleep: nothing said meanwhile is held against
anybody, and the promises of a hand-over hold.

A machine of its own: the planted bugs are looked for in histories in which nobody is away.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from api.generator import TokenEvent
from kv_transfer.errors import LeaseExpired
from tests.contract.test_hand_over_model import HISTORIES, HandOver, TestHandOver
from tests.ledger_model.endings import abort_all, is_as_new
from tests.ledger_model.node import Call
from tests.ledger_model.play import Play

FEW_HISTORIES = 50
absences = st.sampled_from([0.6, 1.3, 3.0])


class Absences(HandOver):
    """As HandOver, and threads that are away."""

    @precondition(lambda self: self.play.calls)
    @rule(number=st.integers(0, 3), seconds=absences)
    def absence(self, number: int, seconds: float) -> None:
        self.play.absence(number, seconds)

    @precondition(lambda self: self.play.calls)
    @rule(seconds=absences)
    def suspend(self, seconds: float) -> None:
        self.play.suspend(seconds)


TestAbsences = Absences.TestCase
TestAbsences.settings = settings(TestHandOver.settings, max_examples=HISTORIES or FEW_HISTORIES)
del HandOver, TestHandOver  # or they would be tested here again


def held_by_both() -> tuple[Play, Call]:
    """A hand-over under way: asked for, and told of; no message is on its way."""
    play = Play()
    first = play.prefill(70)
    first.node.compute()
    second = play.decode(0)
    assert second is not None
    for node in (second.node, first.node):
        node.compute()
        node.shell.turn()
    while play.messages:
        play.carry(0)
    return play, second


def test_a_sink_that_was_away_does_not_call_its_source_silent() -> None:
    """It had not asked. Its lease is over, which is nobody's fault."""
    play, call = held_by_both()
    (sink,) = [number for number, node in enumerate(play.nodes) if node is call.node]
    play.absence(sink, 1.5)
    play.calm()
    errors = [type(news.error) for news in call.node.sink.news]
    assert errors == [LeaseExpired]
    abort_all(play)
    is_as_new(play)


def test_a_machine_that_slept_ends_no_hand_over() -> None:
    """Who woke first heard nothing yet of what the others had asked, or answered."""
    play, call = held_by_both()
    play.suspend(1.5)
    play.calm()
    assert [news.error for news in call.node.sink.news] == [None]
    assert isinstance(call.events[-1], TokenEvent)
    abort_all(play)
    is_as_new(play)
