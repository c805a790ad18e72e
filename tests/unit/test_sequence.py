"""When an answer ends, why, and how many of the tokens behind drafts belong to it."""

from collections.abc import Sequence as Seq

import pytest

from engine.request import Grammar, ReasoningMarks, Request, RequestId, Sampling
from engine.scheduling.sequence import Sequence

PROMPT, EOS, STOP = (1, 9), 9, 7  # an end in the prompt ends nothing


def sequence(sampling: Sampling, *answer: int, generated: Seq[int] = ()) -> Sequence:
    """Whose answer is `generated` on another node, and `answer` here."""
    request = Request(RequestId("r"), PROMPT, sampling, tuple(generated))
    seq = Sequence(request, frozenset([EOS]))
    seq.tokens.extend(answer)
    return seq


@pytest.mark.parametrize(
    ("sampling", "answer", "finish", "stop_reason"),
    [
        (Sampling(4), (5,), None, None),
        (Sampling(2), (5, 5), "length", None),
        (Sampling(4), (5, EOS), "stop", None),
        (Sampling(2), (5, EOS), "stop", None),
        (Sampling(4), (EOS, 5), None, None),
        (Sampling(4, stop_token_ids=(STOP,)), (STOP,), "stop", STOP),
        (Sampling(4, stop_token_ids=(EOS,)), (EOS,), "stop", None),
        (Sampling(4, ignore_eos=True), (EOS,), None, None),
        (Sampling(4, ignore_eos=True, stop_token_ids=(STOP,)), (STOP,), "stop", STOP),
        (Sampling(4, min_tokens=2), (EOS,), None, None),
        (Sampling(4, min_tokens=2), (5, EOS), None, None),
        (Sampling(4, min_tokens=2), (5, 5, EOS), "stop", None),
        (Sampling(2, min_tokens=2), (5, EOS), "length", None),
    ],
)
def test_why_an_answer_ends(
    sampling: Sampling, answer: Seq[int], finish: str | None, stop_reason: int | None
) -> None:
    """Wherever its tokens were sampled."""
    for moved in range(len(answer)):
        seq = sequence(sampling, *answer[moved:], generated=answer[:moved])
        assert (seq.finish, seq.stop_reason) == (finish, stop_reason)
        assert seq.tokens_left == sampling.max_tokens - len(answer)


def test_what_cannot_continue_ends_as_an_error_whatever_its_last_token_is() -> None:
    seq = sequence(Sampling(4), EOS)
    seq.failure = "no token is allowed"
    assert (seq.finish, seq.stop_reason) == ("error", None)


@pytest.mark.parametrize(
    ("drafts", "drawn", "kept"),
    [
        ((), (5,), 1),
        ((5, 6), (5, 6, 4), 3),
        ((5, 6), (5, 4, 4), 2),  # the second draft was another
        ((5, 6), (4, 6, 4), 1),
        ((EOS, 6), (EOS, 6, 4), 1),  # nothing follows the end
        ((5, 6, 5), (5, 6, 5, 6), 3),  # max_tokens
    ],
)
def test_tokens_behind_drafts_count_as_far_as_the_drafts_are_right(
    drafts: Seq[int], drawn: Seq[int], kept: int
) -> None:
    seq = sequence(Sampling(3))
    assert seq.extend(drafts, drawn) == kept
    assert seq.tokens == [*PROMPT, *drawn[:kept]]


@pytest.mark.parametrize(("grammar", "kept"), [(None, 2), (Grammar("regex", "a"), 1)])
def test_with_a_grammar_an_end_behind_a_draft_does_not_count(
    grammar: Grammar | None, kept: int
) -> None:
    """It may have been the only token that was allowed there."""
    sampling = Sampling(3, grammar=grammar)
    assert sequence(sampling).extend((5, EOS), (5, EOS, 4)) == kept
    assert sequence(sampling).extend((), (EOS,)) == 1
    assert sequence(sampling).extend((5, 6), (5, 6, 4)) == 3  # what is no end does


def test_a_mark_that_closes_reasoning_ends_no_answer_and_the_same_token_behind_it_does() -> (
    None
):
    """The grammar binds from behind the mark on: only there does an end that is ignored end."""
    behind, grammar = ReasoningMarks(closes=((EOS,),)), Grammar("regex", "a*")
    sampling = Sampling(4, ignore_eos=True, grammar=grammar, grammar_behind=behind)
    assert sequence(sampling, 5, EOS).finish is None
    assert sequence(sampling, 5, EOS, EOS).finish == "stop"


@pytest.mark.parametrize(("generated", "reusable"), [((), 0), ((5,), 2)])
def test_a_prompt_is_scored_before_the_answer_begins_and_not_again(
    generated: Seq[int], reusable: int
) -> None:
    seq = sequence(Sampling(4, prompt_logprobs=0), generated=generated)
    assert seq.prompt_logprobs == (None if generated else [])
    assert seq.reusable == reusable
