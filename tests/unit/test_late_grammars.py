"""A grammar behind reasoning begins where it should, however the answer comes in."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from engine.errors import UnknownToken
from engine.request import (
    FinishReason,
    Grammar,
    ReasoningMarks,
    Request,
    RequestId,
    Sampling,
    first_token_digest,
)
from engine.sampling.checks import check_sampling
from engine.sampling.deferred_matcher import DeferredMatcher
from engine.sampling.sampler import Sampler, SamplerRow
from engine.scheduling.reasoning import ReasoningTracker
from engine.scheduling.sequence import Sequence as Seq
from tests.fakes.sampling import Parities, Parity, sequence

VOCABULARY = 45
EVEN = Grammar("regex", "0")  # tokens are even and odd in turn
HM, YES, NO, END = 9, 4, 6, 7
CLOSED, HALVED = ReasoningMarks(((YES,),)), ReasoningMarks(((YES, NO),))
EITHER = ReasoningMarks(((YES,),), ((NO,), (HM, NO)))

TOKENS = st.integers(1, 4)
MARK = st.lists(TOKENS, min_size=1, max_size=3).map(tuple)
MARKS = st.builds(
    ReasoningMarks,
    st.lists(MARK, min_size=1, max_size=3).map(tuple),
    st.lists(MARK, max_size=3).map(tuple),
)
ANSWER = st.lists(TOKENS, max_size=12).map(tuple)


def begins(marks: ReasoningMarks, answer: Sequence[int]) -> int | str | None:
    """The grammar's first token; None within reasoning, "mark" where one may be begun."""
    start, said = 0, tuple(answer)
    if marks.opens:
        heads = (said[:length] for length in range(1, len(said) + 1))
        for head in heads:
            if head in marks.opens:
                start = len(head)
                break
            if not any(one[: len(head)] == head for one in marks.opens):
                return 0
        else:
            return "mark"
    for end in range(start + 1, len(said) + 1):
        if any(said[start:end][-len(one) :] == one for one in marks.closes):
            return end
    return None


@given(MARKS, ANSWER, st.integers(0, 12))
def test_a_grammar_begins_behind_the_first_closing_mark(
    marks: ReasoningMarks, answer: tuple[int, ...], cut: int
) -> None:
    where, thought = begins(marks, answer), ReasoningTracker(marks)
    before = thought.advance(answer[:cut])
    ahead, more = thought.after(answer[cut:])
    taken = thought.num_tokens
    assert thought.advance(answer[cut:]) == more  # what might have come has changed nothing
    assert taken == len(answer[:cut])
    for one in (thought, ahead):
        assert one.grammar_start == (where if isinstance(where, int) else None)
        assert one.in_reasoning == (where is None)
        assert one.in_opening_mark == (where == "mark" and bool(answer))
    assert before + more == list(answer[where:] if isinstance(where, int) else ())


def late(marks: ReasoningMarks) -> tuple[DeferredMatcher, Parity]:
    grammar = Parity(EVEN, VOCABULARY)
    return DeferredMatcher(grammar, ReasoningTracker(marks)), grammar


def allowed(matcher: DeferredMatcher, drafted: Sequence[int] = ()) -> set[int]:
    bits = torch.zeros((3, 2), dtype=torch.int32)
    matcher.fill_bitmask(drafted, bits, 1)
    assert not bits[::2].any()
    return set(unpacked(bits[1])) & set(range(VOCABULARY))


def unpacked(words: Tensor) -> list[int]:
    bits = np.unpackbits(words.numpy().view(np.uint8), bitorder="little")
    found: list[int] = bits.nonzero()[0].tolist()
    return found


def obviously(marks: ReasoningMarks, answer: Sequence[int]) -> set[int]:
    where, grammar = begins(marks, answer), Parity(EVEN, VOCABULARY)
    if where is None:
        return set(range(VOCABULARY))
    if isinstance(where, int):
        return grammar.allowed(answer[where:])
    said = tuple(answer)
    nexts = {one[len(said)] for one in marks.opens if one[: len(said)] == said}
    return nexts if said else nexts | grammar.allowed(())


@given(MARKS, ANSWER, st.integers(0, 12))
def test_all_is_allowed_before_the_grammar_and_behind_drafts_too(
    marks: ReasoningMarks, answer: tuple[int, ...], cut: int
) -> None:
    matcher, grammar = late(marks)
    matcher.advance(answer[:cut])
    assert allowed(matcher) == obviously(marks, answer[:cut])
    assert allowed(matcher, answer[cut:]) == obviously(marks, answer)
    matcher.advance(answer[cut:])
    assert allowed(matcher) == obviously(marks, answer)
    where = begins(marks, answer)
    assert grammar.told == list(answer[where:] if isinstance(where, int) else ())


def test_reasoning_may_end_and_a_mark_may_not() -> None:
    for marks, said, may in (
        (CLOSED, (), True),
        (CLOSED, (HM,), True),
        (CLOSED, (YES,), False),
        (EITHER, (), False),
        (EITHER, (HM,), False),
        (EITHER, (HM, NO), True),
        (EITHER, (1,), False),
    ):
        matcher, grammar = late(marks)
        matcher.advance(said)
        assert matcher.may_end is (said != (HM,) or marks is CLOSED)
        grammar.may_end = False
        assert matcher.may_end is may
        grammar.failure = "stuck"
        assert matcher.failure == "stuck"


def finishes(
    answer: Sequence[int], marks: ReasoningMarks | None, **more: object
) -> list[str | None]:
    """Of each of the answer's tokens, as they come."""
    settings: dict[str, object] = {"max_tokens": 9, "grammar": EVEN, "grammar_behind": marks}
    sampling = Sampling(**{**settings, **more})  # type: ignore[arg-type]
    seq = Seq(Request(RequestId("r"), (YES, 2), sampling), frozenset({END}))
    said = list[str | None]()
    for token in answer:
        seq.extend((), [token])
        said.append(seq.finish)
    return said


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("answer", "marks", "more", "last"),
    [
        ((HM, END), CLOSED, {}, STOP),
        ((HM, END), CLOSED, {"ignore_eos": True}, None),
        ((HM, END), CLOSED, {"min_tokens": 3}, None),
        ((HM, HM, HM, END), CLOSED, {"min_tokens": 3}, STOP),
        ((HM, END, YES, 2, END), CLOSED, {"ignore_eos": True}, STOP),
        ((HM, YES, END), CLOSED, {"min_tokens": 9, "ignore_eos": True}, STOP),
        ((HM, YES), CLOSED, {"stop_token_ids": (YES,)}, STOP),
        ((HM, YES, 2), HALVED, {"stop_token_ids": (2,), "min_tokens": 9}, None),
        ((HM, YES, NO, 2), HALVED, {"stop_token_ids": (2,), "min_tokens": 9}, STOP),
        ((NO, END), EITHER, {"ignore_eos": True}, None),
        ((END,), EITHER, {"ignore_eos": True}, STOP),
        ((HM, NO, END, YES, END), EITHER, {"ignore_eos": True}, STOP),
        ((END,), None, {"ignore_eos": True}, STOP),
        ((HM, HM), CLOSED, {"max_tokens": 2}, LENGTH),
    ],
)
def test_before_the_grammar_an_end_is_what_it_is_without_one(
    answer: tuple[int, ...],
    marks: ReasoningMarks | None,
    more: dict[str, object],
    last: str | None,
) -> None:
    *others, end = finishes(answer, marks, **more)
    assert others == [None] * len(others)
    assert end == last


def test_where_nothing_is_left_only_a_grammar_fails() -> None:
    nothing = {"allowed_token_ids": (HM,), "bad_words": ((HM,),), "temperature": 0}
    for answer, fails in (((HM,), False), ((HM, YES), True), ((YES, 2), True)):
        sampling = Sampling(grammar=EVEN, grammar_behind=CLOSED, **nothing)  # type: ignore[arg-type]
        seq = sequence(sampling, answer=answer, eos=frozenset({END}))
        grammars = Parities(VOCABULARY)
        sampler = Sampler(VOCABULARY, grammars)
        sampler.sample(torch.zeros(1, VOCABULARY), [SamplerRow(seq)])
        [made] = grammars.made
        made.may_end = False
        seq.failure = None
        assert sampler.sample(torch.zeros(1, VOCABULARY), [SamplerRow(seq)]).tokens == [END]
        assert (seq.failure is not None) is fails


@pytest.mark.parametrize(
    "odd",
    [
        ReasoningMarks(((3, 45),)),
        ReasoningMarks(((3,),), ((45,),)),
        ReasoningMarks(((3,),), ((3, 90),)),
    ],
)
def test_marks_that_no_token_has_are_refused_by_their_name(odd: ReasoningMarks) -> None:
    request = Request(RequestId("r"), (1,), Sampling(grammar=EVEN, grammar_behind=odd))
    with pytest.raises(UnknownToken, match="grammar_behind") as refused:
        check_sampling(request, VOCABULARY, frozenset())
    assert refused.value.param == "grammar_behind"


def test_a_first_token_counts_only_under_the_same_marks() -> None:
    plain = Sampling(grammar=EVEN)
    samplings = [
        plain,
        *(replace(plain, grammar_behind=one) for one in (CLOSED, HALVED, EITHER)),
    ]
    digests = {first_token_digest(Request(RequestId("r"), (1,), one)) for one in samplings}
    assert len(digests) == len(samplings)


def test_closing_marks_may_have_different_lengths() -> None:
    marks = ReasoningMarks(closes=((5,), (6, 7, 9)))
    assert ReasoningTracker(marks).advance([1, 6, 7, 9, 8]) == [8]
    assert ReasoningTracker(marks).advance([1, 6, 5, 8]) == [8]
