"""The sampler against a slow one that does the obvious thing in float64."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from engine.request import Sampling
from engine.sampling.sampler import Sampler, SamplerRow
from tests.fakes.sampling import draw_at, obvious, sequence

VOCABULARY = 40
DRAWS = 25
CHI_SQUARE_19, CHI_SQUARE_24 = 43.8, 51.2  # exceeded once in a thousand

SHAPES = [
    Sampling(temperature=0),
    Sampling(temperature=1),
    Sampling(temperature=0.3),
    Sampling(temperature=3),
    Sampling(temperature=1e300),
    Sampling(top_k=1),
    Sampling(top_k=7),
    Sampling(top_k=VOCABULARY),
    Sampling(top_k=10 * VOCABULARY),
    Sampling(top_p=0.5),
    Sampling(top_p=1e-6),
    Sampling(top_p=0.97, temperature=2),
    Sampling(min_p=0.1),
    Sampling(min_p=1.0),
    Sampling(min_p=0.02, temperature=2),
    Sampling(top_k=12, top_p=0.8),
    Sampling(top_k=12, min_p=0.05),
    Sampling(top_p=0.8, min_p=0.1),
    Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, seed=3, sample_index=4),
]


def logits_of(rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn((rows, VOCABULARY), generator=generator)


def draws(shapes: Sequence[Sampling]) -> list[SamplerRow]:
    """Each shape at DRAWS positions."""
    return [draw_at(shape, position) for shape in shapes for position in range(DRAWS)]


def sample(logits: Tensor, asked: Sequence[SamplerRow]) -> list[int]:
    return Sampler(logits.shape[1]).sample(logits, asked).tokens


def test_it_draws_what_the_obvious_one_draws() -> None:
    """All shapes in one batch."""
    asked = draws(SHAPES)
    logits = logits_of(len(asked))
    expected = [obvious(row, draw) for row, draw in zip(logits.tolist(), asked, strict=True)]
    assert sample(logits, asked) == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_of_one_kind_draws_the_same(shape: Sampling) -> None:
    asked, logits = draws([shape]), logits_of(DRAWS, seed=1)
    expected = [obvious(row, draw) for row, draw in zip(logits.tolist(), asked, strict=True)]
    alone = [sample(logits[i : i + 1].clone(), [draw]) for i, draw in enumerate(asked)]
    assert [token for (token,) in alone] == expected
    assert sample(logits, asked) == expected


@pytest.mark.parametrize(
    "shape", [Sampling(top_k=5), Sampling(top_p=0.6), Sampling(top_k=9, top_p=0.6)]
)
def test_ties_are_kept_together(shape: Sampling) -> None:
    """Logits on a coarse grid tie all the time."""
    asked, logits = draws([shape]), logits_of(DRAWS).round()
    expected = [obvious(row, draw) for row, draw in zip(logits.tolist(), asked, strict=True)]
    assert sample(logits, asked) == expected


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_hardly_any_temperature_is_none(temperature: float) -> None:
    logits = logits_of(DRAWS) * 50
    best = logits.argmax(1).tolist()
    assert sample(logits, draws([Sampling(temperature=temperature)])) == best


@pytest.mark.parametrize("temperature", [1e30, 1e38, 1e39, 1e300])
@pytest.mark.parametrize("shape", [{}, {"top_k": 3}, {"top_p": 0.9, "min_p": 0.1}])
def test_no_temperature_makes_a_banned_token_possible(
    temperature: float, shape: dict[str, float]
) -> None:
    """Minus infinity divided by infinity is no number."""
    sampling = Sampling(temperature=temperature, allowed_token_ids=(5, 9), **shape)  # type: ignore[arg-type]
    rows = [SamplerRow(sequence(replace(sampling, seed=seed))) for seed in range(DRAWS)]
    assert set(sample(logits_of(DRAWS), rows)) == {5, 9}


@pytest.mark.parametrize("vary", ["seed", "sample_index", "position"])
def test_tokens_come_as_often_as_they_should(vary: str) -> None:
    """Chi-square over 20 tokens, whichever part of the name counts up."""
    logits = logits_of(1)[:, :20]
    count = 20_000
    asked = [
        draw_at(Sampling(), number)
        if vary == "position"
        else draw_at(replace(Sampling(), **{vary: number}), 5)
        for number in range(count)
    ]
    seen = Counter(sample(logits.repeat(count, 1), asked))
    expected = (logits[0].double().softmax(0) * count).tolist()
    chi_square = sum((seen[i] - want) ** 2 / want for i, want in enumerate(expected))
    assert chi_square < CHI_SQUARE_19


def test_one_token_does_not_foretell_the_next() -> None:
    count, kinds = 20_000, 5
    asked = [draw_at(Sampling(seed=1), number) for number in range(count)]
    tokens = sample(torch.zeros((count, kinds)), asked)
    seen, want = Counter(pairwise(tokens)), (count - 1) / kinds**2
    pairs = [(one, two) for one in range(kinds) for two in range(kinds)]
    assert sum((seen[pair] - want) ** 2 / want for pair in pairs) < CHI_SQUARE_24


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 8.0])
def test_a_large_vocabulary_is_looked_at_in_parts_and_drawn_from_as_a_whole(
    spread: float,
) -> None:
    """Flat rows leave more than any part of it, steep ones a handful; some tie all the time."""
    large, asked = 9000, [draw_at(shape, 3) for shape in SHAPES]
    generator = torch.Generator().manual_seed(2)
    logits = spread * torch.randn((len(asked), large), generator=generator)
    for one in (logits, (8 * logits).round() / 8):
        expected = [obvious(row, draw) for row, draw in zip(one.tolist(), asked, strict=True)]
        rows = one.clone().unsqueeze(1)
        alone = [sample(row, [draw]) for row, draw in zip(rows, asked, strict=True)]
        assert [token for (token,) in alone] == expected
        assert sample(one.clone(), asked) == expected


@pytest.mark.parametrize("vocabulary", [9000, 17_000])
@pytest.mark.parametrize("top_p", [0.3, 0.99, 1.0])
def test_a_top_k_beyond_the_part_that_is_looked_at(vocabulary: int, top_p: float) -> None:
    """Larger than either part of a large vocabulary, and larger than all of it."""
    most = [129, 300, 4097, 8000, vocabulary - 1, vocabulary, vocabulary + 5]
    shapes = [
        Sampling(top_k=top_k, top_p=top_p, min_p=min_p) for top_k in most for min_p in (0, 0.4)
    ]
    asked = [draw_at(shape, 3) for shape in shapes]
    generator = torch.Generator().manual_seed(2)
    logits = 0.5 * torch.randn((len(asked), vocabulary), generator=generator)
    expected = [obvious(row, draw) for row, draw in zip(logits.tolist(), asked, strict=True)]
    assert sample(logits, asked) == expected
