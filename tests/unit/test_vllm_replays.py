"""What a node of vLLM says again is left out, and what is not the same is a failure."""

import pytest

from api.generator import EndEvent, Event, TokenEvent
from engine.request import (
    FinishReason,
    Grammar,
    Logprob,
    Logprobs,
    Request,
    RequestId,
    Sampling,
)
from proxy.errors import Cause, NodeFailed
from proxy.foreign.replay import Replay

GRAMMAR = Grammar("regex", "[a-z]+")
END = FinishReason.STOP


def told(token: int) -> Logprobs:
    return (Logprob(token, -0.5, 1),)


def replay(*generated: int, grammar: Grammar | None = GRAMMAR) -> Replay:
    sampling = Sampling(9, grammar=grammar)
    return Replay.of("v", Request(RequestId("r"), (1, 2), sampling, generated=generated))


def test_a_form_is_asked_for_from_its_beginning() -> None:
    assert replay(7, 8).request.tokens == (1, 2)
    assert replay(7, 8, grammar=None).request.tokens == (1, 2, 7, 8)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ([(7,), (8,), (9,)], [(9,)]),
        ([(7, 8), (9,)], [(9,)]),
        ([(7,), (8, 9)], [(9,)]),
        ([(7, 8, 9, 7)], [(9, 7)]),
    ],
)
def test_what_is_said_again_is_left_out(
    said: list[tuple[int, ...]], left: list[tuple[int, ...]]
) -> None:
    one = replay(7, 8)
    events = [one.new_part(TokenEvent(t, logprobs=tuple(map(told, t)))) for t in said]
    expected = [TokenEvent(t, logprobs=tuple(map(told, t))) for t in left]
    assert [event for event in events if event] == expected


def test_an_end_is_told_although_the_last_token_was_known() -> None:
    """Its node broke off between the two."""
    assert replay(7).new_part(TokenEvent((7,), END, 7)) == TokenEvent((), END, 7)


@pytest.mark.parametrize(
    "said", [TokenEvent((6,)), TokenEvent((7, 6)), TokenEvent((7,), END), TokenEvent((), END)]
)
def test_another_answer_is_a_failure(said: TokenEvent) -> None:
    """The client has the first one."""
    with pytest.raises(NodeFailed) as failed:
        replay(7, 8).new_part(said)
    assert (failed.value.cause, failed.value.retryable) == (Cause.DIVERGED, True)


@pytest.mark.parametrize("event", [EndEvent(), TokenEvent((6,))])
def test_all_else_is_let_through(event: Event) -> None:
    assert replay(7, grammar=None).new_part(event) is event
    assert replay().new_part(event) is event
