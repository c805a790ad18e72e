"""Whatever a proxy, a network and time do to two nodes, a hand-over keeps its promises.

Each history ends in one of two ways, and then the next hand-over has to work at once. Set
PDSERVE_MODEL_HISTORIES to look at more of them than `make test` does, anew each time.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kv_transfer.checking import CheckLevel
from tests.ledger_model.endings import abort_all, is_as_new, see_it_through
from tests.ledger_model.play import Play

HISTORIES = int(os.environ.get("PDSERVE_MODEL_HISTORIES", "0"))
FEW_HISTORIES, STEPS, MOST_CALLS, FEW_TURNS = 150, 40, 8, 9
number = st.integers(0, 71)
few = st.integers(0, 3)
SIZES = ((4, 4, 4), (4, 8, 4), (8, 4, 2))  # of each node's blocks
moments = st.sampled_from([0.05, 0.25, 0.7, 1.3, 31.0])


class HandOver(RuleBasedStateMachine):
    """Rules are what may happen; invariants and `teardown` are what was promised."""

    @initialize(
        cuts=st.booleans(),
        aborts=st.booleans(),
        level=st.sampled_from(CheckLevel),
        sizes=st.sampled_from(SIZES),
    )
    def begin(
        self, cuts: bool, aborts: bool, level: CheckLevel, sizes: tuple[int, ...]
    ) -> None:
        self.play, self.aborts = Play(cuts, level, sizes), aborts

    @precondition(lambda self: len(self.play.calls) < MOST_CALLS)
    @rule(number=number, known_at=st.none() | few)
    def prefill(self, number: int, known_at: int | None) -> None:
        self.play.prefill(number, known_at)

    @precondition(lambda self: len(self.play.calls) < MOST_CALLS)
    @rule(number=number, messages=st.integers(0, 9), pieces=few)
    def hand_over(self, number: int, messages: int, pieces: int) -> None:
        self.play.hand_over(number, messages, pieces)

    @precondition(lambda self: len(self.play.calls) < MOST_CALLS)
    @rule(number=number, messages=st.integers(0, 9))
    def loan(self, number: int, messages: int) -> None:
        self.play.loan(number, messages)

    @precondition(lambda self: self.play.tickets)
    @rule(number=number, by_outer_id=st.booleans())
    def decode(self, number: int, by_outer_id: bool) -> None:
        self.play.decode(number, by_outer_id=by_outer_id)

    @precondition(lambda self: self.play.tickets)
    @rule(number=few)
    def misfit(self, number: int) -> None:
        self.play.misfit(number)

    @precondition(lambda self: self.play.calls)
    @rule(number=few)
    def abort(self, number: int) -> None:
        self.play.abort(number)

    @rule(number=few)
    def compute(self, number: int) -> None:
        self.play.compute(number)

    @rule(number=few)
    def turn(self, number: int) -> None:
        self.play.turn(number)

    @precondition(lambda self: self.play.calls)
    @rule(number=few)
    def sweep(self, number: int) -> None:
        self.play.sweep(number)

    @precondition(lambda self: self.play.calls)
    @rule(number=few)
    def restart(self, number: int) -> None:
        self.play.restart(number)

    @precondition(lambda self: self.play.messages)
    @rule(number=few)
    def carry(self, number: int) -> None:
        self.play.carry(number)

    @precondition(lambda self: self.play.messages)
    @rule(number=few)
    def drop(self, number: int) -> None:
        self.play.drop(number)

    @precondition(lambda self: self.play.messages)
    @rule(number=few)
    def repeat(self, number: int) -> None:
        self.play.repeat(number)

    @precondition(lambda self: self.play.readings)
    @rule(number=few)
    def copy(self, number: int) -> None:
        self.play.copy(number)

    @precondition(lambda self: self.play.level and self.play.readings)
    @rule(number=few)
    def spoil(self, number: int) -> None:
        self.play.spoil(number)

    @precondition(lambda self: self.play.calls)
    @rule(seconds=moments)
    def wait(self, seconds: float) -> None:
        self.play.wait(seconds)

    @precondition(lambda self: self.play.calls)
    @rule()
    def flow(self) -> None:
        self.play.flow()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "play"):
            self.play.check()

    def teardown(self) -> None:
        if not hasattr(self, "play"):
            return
        if self.aborts:
            abort_all(self.play)
        else:
            see_it_through(self.play)
        is_as_new(self.play)


TestHandOver = HandOver.TestCase
TestHandOver.settings = settings(
    max_examples=HISTORIES or FEW_HISTORIES,
    stateful_step_count=STEPS,
    derandomize=not HISTORIES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_a_lost_welcome_is_no_reason_to_fail() -> None:
    play = Play()
    play.prefill(0)
    play.flow()
    play.decode(0)
    play.flow()
    play.drop(0)
    abort_all(play)
    is_as_new(play)


def test_a_source_that_the_sweep_gave_up_is_met_anew() -> None:
    """Its Welcome was on the way, and came over a connection that was to be closed."""
    play = Play()
    play.prefill(70)
    play.flow()
    play.decode(0, by_outer_id=True)
    play.flow()
    play.wait(1.3)
    play.sweep(1)
    play.carry(0)
    abort_all(play)
    is_as_new(play)


def test_the_model_knows_loans() -> None:
    """What a node has in its cache is lent to who would compute it, and is right."""
    play = Play()
    for number, known_at in ((3 * 34, None), (3 * 34 + 2, 0)):  # 18 tokens, on two nodes
        play.prefill(number, known_at)
        play.flow()
        play.decode(0)
        play.calm()
        abort_all(play)
    assert [node.source.num_lent for node in play.nodes] == [1, 0, 0]
    assert play.nodes[2].engine.computed < 18
    is_as_new(play)


@pytest.mark.parametrize("level", [CheckLevel.SAMPLED, CheckLevel.FULL])
def test_the_model_knows_corruption(level: CheckLevel) -> None:
    """A piece that came over wrong is an error, and nothing else suffers."""
    play = Play(level=level)
    play.prefill(3 * 34)
    play.calm()
    call = play.decode(0)
    for _ in range(FEW_TURNS):
        if not play.readings:
            play.compute(1)
            play.turn(1)
            play.carry(0)
    play.spoil(0)
    play.calm()
    assert call is not None
    assert "CorruptKv" in str(call.events[-1])
    is_as_new(play)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_model_knows_unequal_sides(sizes: tuple[int, ...]) -> None:
    play = Play(block_sizes=sizes)
    is_as_new(play)
