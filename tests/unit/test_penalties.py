"""Counts of an answer's tokens: any number of distinct ones, each with its own count."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Sampling
from engine.sampling.penalties import FIRST_CAPACITY, TokenCounts
from engine.sampling.sampler import Sampler, SamplerRow
from tests.fakes.sampling import obvious, sequence

TOKENS = st.lists(st.integers(0, 3 * FIRST_CAPACITY), max_size=3 * FIRST_CAPACITY)


def counted(counts: TokenCounts, drafted: tuple[int, ...] = ()) -> dict[int, float]:
    ids, numbers = counts.with_drafted(drafted)
    assert len(ids) == len(set(ids.tolist()))
    return dict(zip(ids.tolist(), numbers.tolist(), strict=True))


@given(TOKENS, st.lists(TOKENS, max_size=3), st.lists(st.integers(0, 99), max_size=5))
def test_every_token_is_counted_once_for_each_time(
    prompt: list[int], answers: list[list[int]], drafted: list[int]
) -> None:
    """The prompt's are there with 0; what is drafted is not kept."""
    counts, want = TokenCounts(prompt), Counter(dict.fromkeys(prompt, 0))
    for answer in answers:
        counts.add(answer)
        want.update(answer)
        assert counted(counts, tuple(drafted)) == dict(want + Counter()) | {
            token: want[token] + drafted.count(token) for token in [*want, *drafted]
        }
    assert counted(counts) == dict(want)


@pytest.mark.parametrize("repetition", [1.0, 1.2])
def test_an_answer_may_have_any_number_of_distinct_tokens(repetition: float) -> None:
    """More than there is room for at the beginning; the last ones are said twice."""
    vocabulary = 5 * FIRST_CAPACITY
    sampling = Sampling(
        temperature=0, frequency_penalty=0.7, repetition_penalty=repetition, max_tokens=1000
    )
    seq, sampler = sequence(sampling, prompt=(1, 2, 3)), Sampler(vocabulary)
    generator = torch.Generator().manual_seed(3)
    for turn in range(12):
        seq.tokens += range(25 * turn, 25 * turn + 25)
        seq.tokens += range(25 * turn + 13, 25 * turn + 25)
        logits = torch.randn((1, vocabulary), generator=generator)
        row = SamplerRow(seq, (7, 7, vocabulary - 1))
        want = obvious(logits[0].tolist(), row)
        assert sampler.sample(logits, [row]).tokens == [want]
