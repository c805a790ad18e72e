"""How it has to end, whatever was done to three nodes."""

from collections.abc import Callable

from api.generator import EndEvent, FailedEvent
from kv_transfer.ticket import LEASE_S
from kv_transfer.wire import BEAT_S
from tests.ledger_model.node import Call, is_over, ticket_of
from tests.ledger_model.play import SAMPLING, STEP_S, Play

PROMISED_S = 2.0  # blocks are back
LONGEST_S = LEASE_S + 10.0  # for each leg that nobody aborts: blocks for one at a time


def abort_all(play: Play) -> None:
    """Every leg is closed: in no more than was promised, nothing is left of them."""
    play.calm()
    while play.calls:
        play.abort(0)
    _run_out(play, PROMISED_S)


def see_it_through(play: Play) -> None:
    """Nobody closes anything: everything ends all the same."""
    play.calm()
    _run_out(play, LONGEST_S * (1 + len(play.calls)))
    for call in play.calls:
        assert is_over(call), f"{call.request.request_id} has no end: {call.events}"


def is_as_new(play: Play) -> None:
    """Whatever has been, the next hand-over works at once; and so does a refusal."""
    play.calls.clear()
    play.wait(BEAT_S)
    for source, sink in ((0, 1), (1, 0), (2, 0)):
        _hand_over_at_once(play, source, sink)
        _refuse_at_once(play, source, play.misfit, 0)
        _refuse_at_once(play, source, play.misfit, 1)


def _hand_over_at_once(play: Play, source: int, sink: int) -> None:
    first = play.prefill(source + len(play.nodes) * 34)  # 18 tokens
    play.flow()
    call = play.decode(0)
    assert call is not None
    before = len(play.nodes[sink].sink.news)
    play.calm()
    news = play.nodes[sink].sink.news[before:]
    assert [one.error for one in news] == [None], f"a fresh pull failed: {news}"
    assert len(call.tokens) == SAMPLING.max_tokens, call.events
    assert isinstance(first.events[-1], EndEvent), first.events
    play.calls.clear()
    assert all(node.is_idle for node in play.nodes), "blocks are left"


def _refuse_at_once(
    play: Play, source: int, refuse: Callable[[int], Call | None], number: int
) -> None:
    play.prefill(source + len(play.nodes) * 34)
    while not any(ticket_of(call) for call in play.calls):
        play.flow()
    call = refuse(number)
    play.calm()
    assert call is not None
    assert isinstance(call.events[-1], FailedEvent), call.events
    assert all(node.is_idle for node in play.nodes), "refused, and the source not told"
    play.calls.clear()


def _run_out(play: Play, longest_s: float) -> None:
    until = play.world.now + longest_s
    while play.world.now < until and not all(node.is_idle for node in play.nodes):
        play.world.now += STEP_S
        play.flow()
        play.flow()
    play.calm()
    left = {node.name: node.engine.load for node in play.nodes if not node.is_idle}
    assert not left, f"not back after {longest_s} s: {left}"
