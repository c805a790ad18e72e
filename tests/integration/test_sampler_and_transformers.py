"""Penalties and truncation are what transformers understands by the same names."""

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.request import Sampling
from engine.sampling.sampler import Sampler, SamplerRow
from engine.sampling.truncation import truncate
from tests.fakes.sampling import sequence

ROWS = 20
TRUNCATIONS = [
    Sampling(top_k=7),
    Sampling(top_p=0.6),
    Sampling(top_p=0.97),
    Sampling(min_p=0.05),
    Sampling(min_p=0.01, top_k=12, top_p=0.8),
]


def logits_of(vocabulary: int) -> Tensor:
    return 3 * torch.randn((ROWS, vocabulary), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("vocabulary", [100, 5000])
@pytest.mark.parametrize("sampling", TRUNCATIONS)
def test_what_is_left_is_what_transformers_leaves(sampling: Sampling, vocabulary: int) -> None:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    ids: Any = torch.zeros((ROWS, 1), dtype=torch.long)
    logits = theirs = logits_of(vocabulary)
    if sampling.min_p:
        theirs = MinPLogitsWarper(sampling.min_p)(ids, theirs)
    if sampling.top_k:
        theirs = TopKLogitsWarper(sampling.top_k)(ids, theirs)
    if sampling.top_p < 1:
        theirs = TopPLogitsWarper(sampling.top_p)(ids, theirs)
    ours = torch.full_like(logits, -torch.inf)
    for kept in truncate(logits, [sampling] * ROWS):
        rows = torch.tensor(kept.rows).unsqueeze(1)
        ours[rows, kept.ids] = kept.logits
    assert torch.equal(ours, theirs)
    assert 1 < ours.isfinite().sum(1).float().mean() < vocabulary


@pytest.mark.parametrize("penalty", [0.6, 1.7])
def test_what_was_said_is_repeated_as_little_as_with_transformers(penalty: float) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    prompt, answer, logits = (3, 5, 5, 8), (8, 20, 21), logits_of(30)
    ids: Any = torch.tensor([[*prompt, *answer]] * ROWS)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
    seq = sequence(Sampling(temperature=0, repetition_penalty=penalty), prompt, answer)
    changed = logits.clone()
    drawn = Sampler(30).sample(changed, [SamplerRow(seq)] * ROWS)
    assert drawn.tokens == theirs.argmax(1).tolist()
    torch.testing.assert_close(changed, theirs)
    assert not torch.equal(changed, logits)
