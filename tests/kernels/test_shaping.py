"""What requests do to logits, and what is told of them, by kernels as by torch."""

import math
import random

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from engine.kernels.gpu.sampling.adjusting import (
    adjust,
    adjust_floor,
    adjust_twin,
    apply_bitmasks,
    apply_bitmasks_floor,
    apply_bitmasks_twin,
)
from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs, gather_logprobs_floor
from engine.kernels.token_logprobs import MOST_TOP_LOGPROBS, TokenLogprobs, logprobs_views
from engine.request import Grammar, Logprobs, Sampling
from engine.sampling import logprobs as by_torch
from engine.sampling.logits_processor import NOTHING_LEFT
from engine.sampling.sampler import Sampler, SamplerRow
from tests.fakes.sampling import Parities, draw_at, sequence
from tests.kernels.ahead import compiled
from tests.unit.test_sampler_shaping import SHAPES, VOCABULARY, drawings, logits_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy

REAL = pytest.param(32, 151_936, marks=pytest.mark.gpu)


def same(ours: Logprobs, theirs: Logprobs) -> bool:
    """Log-probabilities may differ by what a sum is rounded to."""
    return [(one.token, one.rank) for one in ours] == [
        (one.token, one.rank) for one in theirs
    ] and all(
        math.isclose(one.logprob, other.logprob, rel_tol=1e-5, abs_tol=1e-5)
        for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("part", range(4))
def test_a_batch_of_everything_is_as_by_torch(part: int, device: torch.device) -> None:
    """Penalties, biases, bad words, early ends, lists, and log-probabilities beside them."""
    chance = random.Random(part)
    asked = [
        replace(one, logprobs=chance.choice([None, None, 0, 1, 5, -1]))
        for one in SHAPES[part::4]
    ]
    draws = list(drawings([*asked, Sampling(temperature=0), Sampling()], chance))
    logits = logits_of(len(draws), part).to(device)
    want = Sampler(VOCABULARY).sample(logits.cpu().clone(), draws)
    drawn = Sampler(VOCABULARY, kernels=True).sample(logits, draws)
    assert drawn.tokens == want.tokens
    assert drawn.logprobs.keys() == want.logprobs.keys()
    assert all(same(drawn.logprobs[row], told) for row, told in want.logprobs.items())


def test_nothing_left_ends_the_answer_and_is_told_so(device: torch.device) -> None:
    """A row beside it is as it would be alone; log-probabilities are the model's."""
    nothing = Sampling(
        allowed_token_ids=(3,), bad_words=((2, 3),), logprobs=2, temperature=0, top_k=4
    )
    draws = [
        SamplerRow(sequence(nothing, (1,), (2,), frozenset({7, 30}))),
        draw_at(Sampling(), 3),
    ]
    logits = logits_of(2, 1).to(device)
    want = Sampler(VOCABULARY).sample(logits.cpu().clone(), draws)
    drawn = Sampler(VOCABULARY, kernels=True).sample(logits, draws)
    assert drawn.tokens == want.tokens
    assert drawn.tokens[0] == 7
    assert same(drawn.logprobs[0], want.logprobs[0])


def test_a_grammar_that_may_not_end_there_has_failed(device: torch.device) -> None:
    """And none beside it."""
    for kernels in (False, True):
        asked = Sampling(grammar=Grammar("regex", "1"), temperature=0)
        seqs = [sequence(asked), sequence(asked)]
        grammars = Parities(VOCABULARY)
        sampler = Sampler(VOCABULARY, grammars, kernels=kernels)
        for seq in seqs:
            sampler.check(seq)
        for made in grammars.made:
            made.may_end = False
        logits = torch.zeros((2, VOCABULARY), device=device)
        logits[1] = -torch.inf
        sampler.sample(logits, [SamplerRow(seq) for seq in seqs])
        assert [seq.failure for seq in seqs] == [None, NOTHING_LEFT]


@pytest.mark.parametrize("temperature", [1e30, 1e300])
def test_no_temperature_is_too_high(temperature: float, device: torch.device) -> None:
    asked = Sampling(temperature=temperature, bad_words=tuple((one,) for one in range(9)))
    draws = [draw_at(asked, position) for position in range(8)]
    logits = logits_of(8, 2).to(device)
    want = Sampler(VOCABULARY).sample(logits.cpu().clone(), draws)
    assert Sampler(VOCABULARY, kernels=True).sample(logits, draws).tokens == want.tokens


def lists(device: torch.device, rows: int, vocabulary: int = 500) -> tuple[Tensor, ...]:
    """Biases, bans and penalties of some rows of more, in an odd order."""
    headers, tokens, values = list[list[int]](), list[int](), list[float]()
    for row in random.sample(range(2 * rows), rows):
        start = len(tokens)
        biased = random.sample(range(vocabulary), random.choice([0, 3, 300]))
        tokens += biased
        values += [random.choice([1.5, -3.0, -math.inf]) for _ in biased]
        middle = len(tokens)
        seen = random.sample(range(vocabulary), random.choice([0, 5, 270]))
        tokens += seen
        values += [float(random.randrange(3)) for _ in seen]
        headers.append([row, start, middle, len(tokens)])
    factors = [[random.uniform(0.5, 2), random.uniform(-2, 2), 1.5] for _ in headers]
    return (
        torch.tensor(headers, dtype=torch.int32, device=device),
        torch.tensor(factors, device=device),
        torch.tensor(tokens, dtype=torch.int32, device=device),
        torch.tensor(values, dtype=torch.float32, device=device),
    )


@pytest.mark.parametrize(("rows", "vocabulary"), [(4, 500), REAL])
def test_lists_change_their_tokens_and_no_others(
    rows: int, vocabulary: int, device: torch.device
) -> None:
    parts = lists(device, rows, vocabulary)
    around = torch.full((2 * rows, vocabulary + 10), torch.nan, device=device)
    around[:, :vocabulary] = torch.randn(2 * rows, vocabulary, device=device)
    exact = around.double()
    adjust(around[:, :vocabulary], *parts)
    adjust_twin(exact[:, :vocabulary], *parts)
    torch.testing.assert_close(around.double(), exact, equal_nan=True, rtol=1e-6, atol=3e-6)


def test_the_latest_token_counts_once_more(device: torch.device) -> None:
    """In a row's list or not; a row that has none is as before."""
    headers, factors, tokens, values = lists(device, 4)
    values = values.nan_to_num(neginf=1.0)  # what is banned stays so
    latest = torch.full((8,), -1, device=device)
    for index, (row, _, middle, end) in enumerate(headers.tolist()):
        if index % 3 == 0 and end > middle:
            latest[row] = tokens[(middle + end) // 2]
        elif index % 3 == 1:
            latest[row] = 499
    logits = torch.randn(8, 500, device=device)
    want, plain = logits.clone(), logits.clone()
    adjust(logits, headers, factors, tokens, values, latest)
    adjust_twin(want, headers, factors, tokens, values, latest)
    adjust_twin(plain, headers, factors, tokens, values)
    torch.testing.assert_close(logits, want, rtol=1e-6, atol=1e-6)
    changed = (want != plain).any(1)
    assert changed.equal(latest >= 0)
    assert changed.any()


@pytest.mark.parametrize(("count", "vocabulary"), [(2, 101), REAL])
def test_masks_ban_what_they_lack(count: int, vocabulary: int, device: torch.device) -> None:
    around = torch.full((2 * count + 1, vocabulary + 9), torch.nan, device=device)
    around[:, :vocabulary] = torch.randn(2 * count + 1, vocabulary, device=device)
    rows = torch.randperm(2 * count + 1, dtype=torch.int32, device=device)[:count]
    words = -(-vocabulary // 32)
    bits = torch.randint(-(2**31), 2**31, (count, words), dtype=torch.int32, device=device)
    want = around.clone()
    apply_bitmasks(around[:, :vocabulary], rows, bits)
    apply_bitmasks_twin(want[:, :vocabulary], rows, bits)
    torch.testing.assert_close(around, want, equal_nan=True, rtol=0, atol=0)
    assert bool((around[rows[0], :vocabulary] == -torch.inf).any())


def told_of(
    logits: Tensor, rows: list[int], tokens: list[int], most: int, tile: int
) -> TokenLogprobs:
    device = logits.device
    room = torch.full((len(rows) * (2 + 2 * most),), -7, dtype=torch.int32, device=device)
    told = logprobs_views(room, len(rows), most)
    places = torch.tensor(rows, dtype=torch.int32, device=device)
    gather_logprobs(logits, places, torch.tensor(tokens, device=device), told, tile)
    return told


@pytest.mark.parametrize("most", [0, 1, 6, MOST_TOP_LOGPROBS])
@pytest.mark.parametrize("tied", [False, True])
def test_the_likeliest_come_best_first(most: int, tied: bool, device: torch.device) -> None:
    logits = 3 * torch.randn(3, 101, device=device)
    logits = logits.round() if tied else logits
    logits[2, 5:9] = -torch.inf
    rows, tokens = [2, 0], [6, 33]
    told = told_of(logits, rows, tokens, most, 64)
    want = by_torch.top_logprobs(by_torch.logprobs_of(logits[rows].cpu()), tokens, most)
    exact = logits[rows].cpu().double().log_softmax(1)
    chosen = exact.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    torch.testing.assert_close(told.chosen.cpu().double(), chosen, rtol=1e-6, atol=1e-6)
    for index, (first, *beside) in enumerate(want):
        assert told.ranks[index] == first.rank
        assert max(float(told.chosen[index]), by_torch.LEAST_LOGPROB) == pytest.approx(
            first.logprob, abs=1e-5
        )
        assert told.tokens[index].tolist() == [one.token for one in beside]
        assert told.logprobs[index].tolist() == pytest.approx(
            [one.logprob for one in beside], abs=1e-5
        )


def test_floors() -> None:
    assert adjust_floor(1, 100).bytes == 28 + 7200
    assert apply_bitmasks_floor(2, 800).bytes == 2 * (100 + 3200)
    assert gather_logprobs_floor(3, 1000).bytes == 12_000


def test_they_compile_for_hopper() -> None:
    found = compiled(
        "engine.kernels.gpu.sampling.adjusting",
        "adjust(torch.ones(3, 151936), torch.ones(2, 4).int(), torch.ones(2, 3), "
        "torch.ones(9).int(), torch.ones(9))",
        "adjust(torch.ones(3, 151936), torch.ones(2, 4).int(), torch.ones(2, 3), "
        "torch.ones(9).int(), torch.ones(9), torch.ones(3).long())",
        "apply_bitmasks(torch.ones(3, 151936), torch.ones(2).int(), torch.ones(2, 4748).int())",
    )
    found |= compiled(
        "engine.kernels.gpu.sampling.token_logprobs",
        "from engine.kernels.token_logprobs import logprobs_views\n"
        "gather_logprobs(torch.ones(3, 151936), torch.ones(2).int(), torch.ones(2).int(), "
        "logprobs_views(torch.ones(2 * 12).int(), 2, 5))",
    )
    assert sorted(found) == ["_adjust", "_ban", "_gather", "_rank", "_sum"]
    assert not any(one["spilled"] for one in found.values())


@pytest.mark.gpu
def test_real_shapes(device: torch.device) -> None:
    logits = 3 * torch.randn(64, 151_936, device=device)
    rows, tokens = list(range(64)), torch.randint(0, 151_936, (64,)).tolist()
    told = told_of(logits, rows, tokens, 20, 4096)
    want = by_torch.top_logprobs(by_torch.logprobs_of(logits.cpu()), tokens, 20)
    assert told.ranks.tolist() == [one[0].rank for one in want]
    assert told.tokens.tolist() == [[each.token for each in one[1:]] for one in want]
    exact = logits.cpu().double().log_softmax(1).gather(1, told.tokens.cpu().long())
    torch.testing.assert_close(told.logprobs.cpu().double(), exact, rtol=1e-6, atol=3e-6)
