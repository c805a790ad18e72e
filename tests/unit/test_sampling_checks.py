"""Sampling settings that a vocabulary cannot serve are refused by the field, and no others."""

import pytest

from engine.errors import UnknownToken, UnusableSampling
from engine.request import Grammar, ReasoningMarks, Request, RequestId, Sampling
from engine.sampling.checks import check_sampling

VOCABULARY = 6
EVERYTHING = tuple(range(VOCABULARY))


def check(
    sampling: Sampling, ends: tuple[int, ...] = (), generated: tuple[int, ...] = ()
) -> None:
    request = Request(RequestId("r"), (1,), sampling, generated=generated)
    check_sampling(request, VOCABULARY, frozenset(ends))


def naming(field: str, token: int) -> Sampling:
    """A setting of `field` that names `token` behind a token that is known."""
    if field == "grammar_behind":
        marks = ReasoningMarks(((1,), (1, token)))
        return Sampling(grammar=Grammar("regex", "1"), grammar_behind=marks)
    return {
        "logit_bias": Sampling(logit_bias=((1, 2.0), (token, 1.0))),
        "allowed_token_ids": Sampling(allowed_token_ids=(1, token)),
        "bad_words": Sampling(bad_words=((1,), (1, token))),
    }[field]


@pytest.mark.parametrize(
    "field", ["logit_bias", "allowed_token_ids", "bad_words", "grammar_behind"]
)
def test_tokens_of_every_field_are_the_vocabularys(field: str) -> None:
    for token in (0, VOCABULARY - 1):
        check(naming(field, token))
    for token in (-1, VOCABULARY):
        with pytest.raises(UnknownToken, match=field) as refusal:
            check(naming(field, token))
        assert refusal.value.param == field


def test_stop_tokens_need_not_be() -> None:
    check(Sampling(stop_token_ids=(VOCABULARY, 99), min_tokens=1), (VOCABULARY, 99))


def test_a_bad_word_without_tokens_is_refused() -> None:
    with pytest.raises(UnusableSampling, match="bad_words: one has no tokens"):
        check(Sampling(bad_words=((1,), ())))


@pytest.mark.parametrize(
    ("sampling", "ends", "generated", "field"),
    [
        (Sampling(bad_words=tuple((one,) for one in EVERYTHING)), (), (), "bad_words"),
        (Sampling(bad_words=tuple((one, one) for one in EVERYTHING)), (), (), None),
        (Sampling(bad_words=tuple((one,) for one in EVERYTHING[1:])), (), (), None),
        (Sampling(bad_words=tuple((one,) for one in EVERYTHING[1:])), (0,), (), None),
        (Sampling(allowed_token_ids=(1, 2), bad_words=((1,), (2,))), (), (), "allowed"),
        (Sampling(allowed_token_ids=(1, 2), bad_words=((1,), (2, 2))), (), (), None),
        (Sampling(allowed_token_ids=()), (), (), "allowed"),
        (Sampling(allowed_token_ids=(1, 2), min_tokens=1), (2, 1), (), "allowed"),
        (Sampling(allowed_token_ids=(1, 2), min_tokens=1), (2,), (), None),
        (Sampling(allowed_token_ids=(1, 2)), (1, 2), (), None),
        (Sampling(min_tokens=1), EVERYTHING, (), "min_tokens"),
        (Sampling(min_tokens=2), EVERYTHING, (4,), "min_tokens"),
        (Sampling(min_tokens=1), EVERYTHING, (4,), None),
        (Sampling(min_tokens=1), (*EVERYTHING[1:], VOCABULARY), (), None),
        (Sampling(min_tokens=1, bad_words=((0,),)), EVERYTHING[1:], (), "bad_words"),
    ],
)
def test_something_has_to_be_left_to_say(
    sampling: Sampling, ends: tuple[int, ...], generated: tuple[int, ...], field: str | None
) -> None:
    if field is None:
        check(sampling, ends, generated)
        return
    with pytest.raises(UnusableSampling, match=f"{field}.*: nothing"):
        check(sampling, ends, generated)
