"""Sampling without sorting gives the tokens of the sampler's torch path, ties included."""

import random
from collections import Counter

import pytest
import torch
import triton
import triton.language as tl

from engine.kernels.gpu.sampling.choosing import Sizes, choose_floor
from engine.kernels.gpu.sampling.noise import noise_bits
from engine.request import Sampling
from engine.sampling.noise import noise_key
from tests.kernels.ahead import compiled
from tests.kernels.sampling_cases import TINY, anything, by_torch, ours

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy
HIGHEST = 3.09  # a normal deviate that is exceeded once in a thousand


@pytest.mark.parametrize("tied", [0, 1] * 8)
def test_any_row_is_chosen_as_by_torch(tied: int, device: torch.device) -> None:
    """Vocabularies that are no multiple of a tile, ties at thresholds, flat and steep rows."""
    seed = random.randrange(2**40)
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, vocabulary = chance.randint(1, 4), chance.choice([1, 7, 64, 100, 333])
    logits = torch.randn(rows, vocabulary, generator=generator) * chance.choice([0.1, 1, 5])
    if tied:
        logits = (logits * 2).round() / 2
    asked = [anything(chance, vocabulary) for _ in range(rows)]
    around = torch.full((rows, vocabulary + 5), torch.nan, device=device)
    around[:, :vocabulary] = logits
    found, alive = ours(around[:, :vocabulary], asked, chance.choice(TINY), range(rows))
    assert all(alive)
    assert found == by_torch(logits, asked, range(rows)), seed


@pytest.mark.parametrize("asked", [Sampling(), Sampling(top_k=7), Sampling(top_p=0.4)])
@pytest.mark.parametrize("value", [0.0, -3.25, 1e30])
def test_all_that_tie_are_kept(asked: Sampling, value: float, device: torch.device) -> None:
    """More ties than there is room for on the chip; a zero and a negative one tie, too."""
    logits = torch.full((2, 200), value, device=device)
    logits[:, ::2] *= -1 if value == 0 else 1
    logits[:, 150:] = -1e30
    found, _ = ours(logits, [asked] * 2, TINY[0], range(2))
    assert found == by_torch(logits, [asked] * 2, range(2))


HOSTILE = [
    Sampling(temperature=0),
    Sampling(),
    Sampling(top_k=3),
    Sampling(top_p=0.5),
    Sampling(min_p=0.2),
    Sampling(top_k=500, top_p=0.999, min_p=1e-3),
]


@pytest.mark.parametrize("asked", HOSTILE)
def test_a_row_with_no_number_gives_the_first_of_them(
    asked: Sampling, device: torch.device
) -> None:
    logits = torch.randn(1, 100, device=device)
    logits[0, [70, 41]], logits[0, 2] = torch.nan, torch.inf
    assert ours(logits, [asked], TINY[1], [0]) == ([41], [True])
    logits[0, [70, 41]] = torch.inf
    assert ours(logits, [asked], TINY[1], [0]) == ([2], [True])


@pytest.mark.parametrize("asked", HOSTILE)
def test_where_nothing_is_left_the_row_says_so(asked: Sampling, device: torch.device) -> None:
    """And a row beside it is as it would be alone."""
    logits = torch.randn(2, 100, device=device)
    logits[0] = -torch.inf
    found, alive = ours(logits, [asked] * 2, TINY[0], [4, 5])
    assert (found[0], alive) == (0, [False, True])
    assert found[1:] == by_torch(logits[1:], [asked], [5])
    logits[0, 77] = -1e38
    assert ours(logits, [asked] * 2, TINY[0], [4, 5]) == ([77, found[1]], [True, True])


@pytest.mark.parametrize("others", [{}, {"top_k": 3}, {"min_p": 0.1}])
def test_a_top_p_that_is_zero_in_float32_keeps_the_likeliest(
    others: dict[str, float], device: torch.device
) -> None:
    asked = [Sampling(top_p=1e-50, **others)]  # type: ignore[arg-type]
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(1)).to(device)
    for sizes in TINY:
        found, alive = ours(logits, asked, sizes, [0])
        assert (found, alive) == ([int(logits.argmax())], [True])


def test_no_rows_are_no_launch(device: torch.device) -> None:
    assert ours(torch.empty(0, 9, device=device), [], TINY[0], []) == ([], [])


@pytest.mark.parametrize("sizes", TINY[:2])
def test_how_a_row_is_looked_at_changes_nothing(sizes: Sizes, device: torch.device) -> None:
    """So no batch does, and no GPU that would rather have other tiles."""
    chance, logits = random.Random(3), 2 * torch.randn(3, 333, device=device)
    asked = [anything(chance, 333) for _ in range(3)]
    together, _ = ours(logits, asked, TINY[2], range(3))
    for row in range(3):
        alone, _ = ours(logits[row : row + 1], [asked[row]], sizes, [row])
        assert alone == together[row : row + 1]


@pytest.mark.parametrize(("asked", "draws"), [(Sampling(), 120), (Sampling(top_k=3), 50)])
def test_tokens_come_as_often_as_they_should(
    asked: Sampling, draws: int, device: torch.device
) -> None:
    """A chi-square of draws that are always the same."""
    logits = torch.tensor([1.0, 0.0, 0.5, -1.0], device=device)
    every = logits.repeat(draws, 1), [asked] * draws, Sizes(8, 8, 2, 8, 8, 8, 8), range(draws)
    seen = Counter(ours(*every)[0])
    kept = logits.cpu().double()
    if asked.top_k:
        kept[kept < kept.topk(asked.top_k).values[-1]] = -torch.inf
    wanted = (kept.softmax(0) * draws).tolist()
    assert seen.keys() <= {token for token, one in enumerate(wanted) if one}
    free = sum(one > 0 for one in wanted) - 1
    statistic = sum((seen[token] - one) ** 2 / one for token, one in enumerate(wanted) if one)
    bound = free * (1 - 2 / (9 * free) + HIGHEST * (2 / (9 * free)) ** 0.5) ** 3
    assert statistic < bound


@triton.jit  # type: ignore[untyped-decorator]
def _bits(out, low, high, tokens: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    place = tl.arange(0, tokens)
    halves = tl.load(low).to(tl.uint32), tl.load(high).to(tl.uint32)
    tl.store(out + place, noise_bits(place + 151_000, halves[0], halves[1]).to(tl.int32))


def test_noise_has_the_same_bits(device: torch.device) -> None:
    from engine.kernels.mixing import GOLDEN, mix, signed

    for seed in range(4):
        key = torch.tensor(noise_key(seed, 1, 9), device=device)
        found = torch.empty(1024, dtype=torch.int32, device=device)
        _bits[(1,)](found, key, key[1:], 1024)
        halves = key.to(torch.int32)
        bits = torch.arange(151_000, 152_024, dtype=torch.int32, device=device)
        bits = bits * signed(GOLDEN) ^ halves[0]
        mix(bits, torch.empty_like(bits))
        bits ^= halves[1]
        mix(bits, torch.empty_like(bits))
        assert torch.equal(found, bits >> 9 & 0x7FFFFF)


def test_the_floor_is_one_look_at_the_logits() -> None:
    assert choose_floor(64, 151_936).bytes == 64 * (151_936 * 4 + 32)


def test_it_compiles_for_hopper_and_hardly_spills() -> None:
    column = "torch.ones(3)"
    found = compiled(
        "engine.kernels.gpu.sampling.choosing",
        f"choose(torch.ones(3, 151936), {column}, {column}.int(), {column}, {column}, "
        "torch.ones(3, 2, dtype=torch.int32))",
    )
    spilled = {name: told["spilled"] for name, told in found.items()}
    assert spilled.pop("_draw") <= 64
    assert spilled == dict.fromkeys(["_survey", "weigh", "gather", "settle"], 0)
    assert found["weigh"]["registers"] <= 128


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1.0, 4.0])
def test_real_shapes(width: float, device: torch.device) -> None:
    """Of 64 rows some may differ by a last bit; more than one in a thousand is an error."""
    chance, different = random.Random(1), 0
    for turn in range(20):
        logits = width * torch.randn(64, 151_936, device=device)
        asked = [anything(chance, 151_936) for _ in range(64)]
        at = range(64 * turn, 64 * turn + 64)
        found, _ = ours(logits, asked, Sizes(), at)
        wanted = by_torch(logits, asked, at)
        different += sum(one != other for one, other in zip(found, wanted, strict=True))
    assert different <= 1
