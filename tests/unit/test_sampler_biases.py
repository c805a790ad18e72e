"""A request may name any number of tokens, and holds up no batch by it."""

import random
from time import thread_time

import pytest
import torch

from engine.request import Sampling
from engine.sampling.logits_processor import MANY
from engine.sampling.sampler import Sampler, SamplerRow
from tests.fakes.sampling import obvious, sequence

VOCABULARY = 2_000
EOS = frozenset({7, 30})
CHANCE = random.Random(1)
TOKENS = CHANCE.sample(range(VOCABULARY), VOCABULARY - 20)
BIAS = tuple((token, CHANCE.uniform(-3, 3)) for token in TOKENS[: MANY + 200])
NAMED = [
    Sampling(logit_bias=BIAS),
    Sampling(bad_words=tuple((token,) for token in TOKENS[: MANY + 200]), logit_bias=BIAS),
    Sampling(min_tokens=3, stop_token_ids=tuple(TOKENS)),
    Sampling(min_tokens=3, stop_token_ids=tuple(TOKENS), logit_bias=BIAS, top_p=0.9),
    Sampling(min_tokens=3, stop_token_ids=tuple(TOKENS[:9]), logit_bias=BIAS[: MANY - 9]),
    Sampling(logit_bias=BIAS[:3], temperature=0),
]


@pytest.mark.parametrize("said", [(), (5,), (5, 5), (5, 5, 5), (5, 5, 5, 5)])
@pytest.mark.parametrize("drafted", [(), (9,)])
def test_many_are_what_each_is(said: tuple[int, ...], drafted: tuple[int, ...]) -> None:
    draws = [SamplerRow(sequence(one, answer=said, eos=EOS), drafted) for one in NAMED]
    logits = torch.randn((len(draws), VOCABULARY), generator=torch.Generator().manual_seed(2))
    want = [obvious(row, draw) for row, draw in zip(logits.tolist(), draws, strict=True)]
    sampler = Sampler(VOCABULARY)
    for _ in range(2):  # what is kept from draw to draw is not used up
        assert sampler.sample(logits.clone(), draws).tokens == want


def test_a_step_takes_no_longer_for_all_tokens_than_for_some() -> None:
    """Tokens in a list, one by one, would take seconds."""
    vocabulary = 150_000
    every = tuple(range(10, vocabulary))
    words = tuple((*[9] * (token % 2), token) for token in every)
    named = Sampling(
        min_tokens=9,
        max_tokens=9,
        stop_token_ids=every,
        logit_bias=tuple((token, 1.0) for token in every),
        bad_words=words,
    )
    draws = [SamplerRow(sequence(named, answer=(9, 9, 9), eos=EOS)) for _ in range(8)]
    sampler, logits = Sampler(vocabulary), torch.randn(8, vocabulary)
    sampler.sample(logits.clone(), draws)

    def seconds() -> float:
        began = thread_time()
        sampler.sample(logits.clone(), draws)
        return thread_time() - began

    assert min(seconds() for _ in range(5)) < 0.5, "some are slow beside other work, not all"
