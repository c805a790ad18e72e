"""Truncation at the ends of its settings' ranges, where a float32 rounds them."""

import math

import pytest
import torch

from engine.request import Sampling
from engine.sampling.sampler import Sampler
from engine.sampling.truncation import LONGER, PREFIX, WORTH_IT, truncate
from tests.fakes.sampling import draw_at

ROWS = 400
SIZES = [40, PREFIX * WORTH_IT + 1, LONGER * WORTH_IT + 1]


def left(logits: torch.Tensor, sampling: Sampling) -> list[set[int]]:
    """What is kept of each row."""
    found = dict[int, set[int]]()
    for kept in truncate(logits, [sampling] * len(logits)):
        for row, ids, values in zip(kept.rows, kept.ids, kept.logits, strict=True):
            found[row] = set(ids[values > -torch.inf].tolist())
    return [found[row] for row in range(len(logits))]


@pytest.mark.parametrize("size", SIZES)
def test_a_top_p_that_no_float32_holds_keeps_the_likeliest(size: int) -> None:
    """1e-300 is 0 there, and still some token has to come."""
    logits = torch.randn((3, size), generator=torch.Generator().manual_seed(1))
    for sampling in (Sampling(top_p=1e-300), Sampling(top_p=1e-300, top_k=5, min_p=0.1)):
        assert left(logits, sampling) == [{best} for best in logits.argmax(1).tolist()]


@pytest.mark.parametrize("size", SIZES)
def test_a_top_p_of_nearly_one_keeps_nothing_that_top_k_does_not(size: int) -> None:
    """Sums of probabilities are rounded, and may stay below it."""
    logits = torch.randn((50, size), generator=torch.Generator().manual_seed(1))
    for most in (3, 20, 39):
        likeliest = [set(row) for row in logits.topk(most).indices.tolist()]
        found = left(logits, Sampling(top_k=most, top_p=math.nextafter(1, 0)))
        assert found == likeliest
        found = left(logits, Sampling(top_k=most, top_p=1 - 2**-24))
        assert all(ours <= all_ for ours, all_ in zip(found, likeliest, strict=True))


def test_a_top_p_of_nearly_one_cuts_what_is_rarer_than_the_rest() -> None:
    logits = torch.tensor([0.0, -6.0]).repeat(ROWS, 1)
    draws = [draw_at(Sampling(top_p=0.995), position) for position in range(ROWS)]
    drawn = Sampler(2).sample(logits.clone(), draws).tokens
    assert set(drawn) == {0}
    plain = [draw_at(Sampling(), position) for position in range(ROWS)]
    assert set(Sampler(2).sample(logits, plain).tokens) == {0, 1}
