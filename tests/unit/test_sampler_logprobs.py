"""Log-probabilities, against the obvious ones in float64."""

import math

import pytest
import torch
from torch import Tensor

from engine.errors import UnusableSampling
from engine.kernels.token_logprobs import TokenLogprobs
from engine.request import Logprobs, Request, RequestId, Sampling
from engine.sampling.checks import MOST_SCORES, check_sampling
from engine.sampling.device_logprobs import unpack_logprobs
from engine.sampling.logprobs import LEAST_LOGPROB, logprobs_of, top_logprobs
from engine.sampling.sampler import Sampler, SamplerRow
from tests.fakes.sampling import draw_at, sequence

VOCABULARY = 50
GENERATOR = torch.Generator().manual_seed(0)


def obvious(logits: list[float], token: int, most: int) -> list[tuple[int, float, int]]:
    """The token, then the likeliest; equals by their ids."""
    top = max(logits)
    total = top + math.log(sum(math.exp(x - top) for x in logits))
    ranked = sorted(range(len(logits)), key=lambda one: (-logits[one], one))
    told = [token, *ranked[: len(ranked) if most < 0 else most]]
    return [
        (one, logits[one] - total, 1 + sum(x > logits[one] for x in logits)) for one in told
    ]


def same(ours: Logprobs, theirs: list[tuple[int, float, int]]) -> bool:
    places = [(one.token, one.rank) for one in ours] == [(t, rank) for t, _, rank in theirs]
    pairs = zip(ours, theirs, strict=True)
    return places and all(math.isclose(a.logprob, b[1], abs_tol=1e-5) for a, b in pairs)


def logits_of(rows: int, *, ties: bool = False) -> Tensor:
    logits = 4 * torch.randn((rows, VOCABULARY), generator=GENERATOR)
    return logits.round() if ties else logits


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("most", [0, 1, 5, VOCABULARY - 1, VOCABULARY, 3 * VOCABULARY, -1])
def test_they_are_the_obvious_ones(most: int, ties: bool) -> None:
    logits = logits_of(20, ties=ties)
    tokens = torch.randint(0, VOCABULARY, (20,), generator=GENERATOR).tolist()
    for ours, row, token in zip(
        top_logprobs(logprobs_of(logits), tokens, most), logits.tolist(), tokens, strict=True
    ):
        assert same(ours, obvious(row, token, most))


def test_what_cannot_be_is_least_likely_and_a_number() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]])
    (told,) = top_logprobs(logprobs_of(logits), [3], -1)
    assert [(one.token, one.rank) for one in told] == [(3, 3), (0, 1), (2, 1), (1, 3), (3, 3)]
    assert told[0].logprob == LEAST_LOGPROB


def test_certainty_is_no_bits_at_all() -> None:
    """0 and -0 are one rank."""
    (told,) = top_logprobs(torch.tensor([[-0.0, 0.0, -0.0]]), [1], 3)
    assert [(one.token, one.rank) for one in told] == [(1, 1), (0, 1), (1, 1), (2, 1)]


def test_what_a_device_gathered_is_told_as_by_torch() -> None:
    """Tokens that tie have one rank, and what cannot be has a number; each row has its own."""
    logits = torch.tensor([[2.0, 1.0, 2.0, -torch.inf, 1.0], [0.0, 3.0, 0.0, 0.0, 5.0]])
    logprobs, tokens, most = logprobs_of(logits), [3, 1], [5, 2]
    likeliest = logits.sort(dim=1, descending=True, stable=True).indices
    told = TokenLogprobs(
        logprobs.gather(1, torch.tensor([[3], [1]]))[:, 0],
        torch.tensor([5, 2]),
        likeliest,
        logprobs.gather(1, likeliest),
    )
    rows = zip(logprobs.split(1), tokens, most, strict=True)
    want = [top_logprobs(row, [token], count)[0] for row, token, count in rows]
    assert list(unpack_logprobs(told, tokens, most)) == want


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_they_are_of_the_model_whatever_is_asked(temperature: float) -> None:
    """Some want some, some all, some none; biases and bans change tokens and nothing else."""
    asked = [
        Sampling(temperature=temperature, logprobs=most, top_k=3, **more)
        for most in (None, 0, 3, -1, 3)
        for more in (
            {},
            {"logit_bias": ((4, 50.0),), "bad_words": ((2,),)},
            {"allowed_token_ids": (6, 9), "repetition_penalty": 3.0},
        )
    ]
    logits = logits_of(len(asked))
    raw = logits.tolist()
    drawn = Sampler(VOCABULARY).sample(logits, [SamplerRow(sequence(one)) for one in asked])
    assert drawn.logprobs.keys() == {
        n for n, one in enumerate(asked) if one.logprobs is not None
    }
    for row, told in drawn.logprobs.items():
        most = asked[row].logprobs
        assert most is not None
        assert same(told, obvious(raw[row], drawn.tokens[row], most))
    assert drawn.tokens[4] == 4
    assert drawn.tokens[5] in {6, 9}


def test_a_row_is_the_same_in_any_batch() -> None:
    logits = logits_of(9)
    asked = [draw_at(Sampling(logprobs=one % 4), one) for one in range(9)]
    together = Sampler(VOCABULARY).sample(logits.clone(), asked).logprobs
    for row, draw in enumerate(asked):
        alone = Sampler(VOCABULARY).sample(logits[row : row + 1].clone(), [draw])
        assert alone.logprobs[0] == together[row]


def test_whoever_does_not_want_them_now_draws_the_same_without() -> None:
    asked = [draw_at(Sampling(logprobs=one), 3) for one in (None, 0, 2)]
    logits = logits_of(3)
    want = Sampler(VOCABULARY).sample(logits.clone(), asked)
    drawn = Sampler(VOCABULARY).sample(logits, asked, logprobs=False)
    assert drawn.tokens == want.tokens
    assert want.logprobs.keys() == {1, 2}
    assert drawn.logprobs == {}


@pytest.mark.parametrize(
    ("asked", "each"), [(-1, VOCABULARY + 1), (0, 1), (4, 5), (10**6, VOCABULARY + 1)]
)
def test_a_prompt_has_no_more_log_probabilities_than_can_be_carried(
    asked: int, each: int
) -> None:
    longest = MOST_SCORES // each
    for length in (longest, longest + 1):
        request = Request(
            RequestId("one"), (1,) * length, Sampling(prompt_logprobs=asked), generated=(1,)
        )
        if length == longest:
            check_sampling(request, VOCABULARY, frozenset())
        else:
            with pytest.raises(UnusableSampling, match="prompt_logprobs"):
                check_sampling(request, VOCABULARY, frozenset())
