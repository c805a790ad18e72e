"""Sampling without sorting gives the tokens of the sampler's torch path, ties included."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from msgspec.structs import replace
from torch import Tensor

from engine.kernels.gpu.sampling.choosing import Sizes, choose, choose_floor
from engine.kernels.gpu.sampling.noise import noise_bits
from engine.kernels.gpu.sampling.spreading import settle
from engine.kernels.searching import Search, search_for
from engine.request import Sampling
from engine.sampling.noise import noise_key
from engine.sampling.sampler import Sampler
from tests.fakes.sampling import draw_at
from tests.kernels.ahead import compiled

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy
TINY = (
    Sizes(64, 8, 4, capacity=16, chunk=128, slice=64, step=32),  # mostly from memory
    Sizes(64, 8, 16, capacity=64, chunk=128, slice=128, step=64),
    Sizes(128, 16, 8, capacity=128, chunk=64, slice=256, step=128),
)
HIGHEST = 3.09  # a normal deviate that is exceeded once in a thousand


def ours(
    logits: Tensor,
    asked: Sequence[Sampling],
    sizes: Sizes,
    positions: Sequence[int],
    search: Search | None = None,
) -> tuple[list[int], list[bool]]:
    """Tokens, and whether there was anything to choose from."""
    device = logits.device

    def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    pairs = zip(asked, positions, strict=True)
    names = [noise_key(one.seed, one.sample_index, at) for one, at in pairs]
    out = torch.full((len(asked),), -9, device=device)
    alive = torch.full_like(out, -9)
    tokens = choose(
        logits,
        column([one.temperature for one in asked]),
        column([one.top_k for one in asked], torch.int32),
        column([one.top_p for one in asked]),
        column([one.min_p for one in asked]),
        torch.tensor(names, device=device).view(-1, 2),
        out=out,
        alive=alive,
        sizes=sizes,
        search=_search(asked) if search is None else search,
    )
    assert tokens is out
    assert set(alive.tolist()) <= {0, 1}
    return tokens.tolist(), [bool(one) for one in alive.tolist()]


def _search(asked: Sequence[Sampling]) -> Search:
    return search_for((one.temperature, one.top_k, one.top_p, one.min_p) for one in asked)


def by_torch(logits: Tensor, asked: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    draws = [draw_at(one, at) for one, at in zip(asked, positions, strict=True)]
    return Sampler(logits.shape[1]).sample(logits.cpu().clone(), draws).tokens


def anything(chance: random.Random, vocabulary: int) -> Sampling:
    return Sampling(
        temperature=chance.choice([0, 0.3, 1, 2.0]),
        top_k=chance.choice([0, 0, 1, 3, 20, vocabulary, vocabulary + 5]),
        top_p=chance.choice([1, 1, 1e-9, 0.01, 0.5, 0.9, 0.999]),
        min_p=chance.choice([0, 0, 0.01, 0.3, 1]),
        seed=chance.randrange(2**64),
    )


@pytest.mark.parametrize("seed", range(16))
def test_any_row_is_chosen_as_by_torch(seed: int, device: torch.device) -> None:
    """Vocabularies that are no multiple of a tile, ties at thresholds, flat and steep rows."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, vocabulary = chance.randint(1, 4), chance.choice([1, 7, 64, 100, 333])
    logits = torch.randn(rows, vocabulary, generator=generator) * chance.choice([0.1, 1, 5])
    if seed % 2:
        logits = (logits * 2).round() / 2
    asked = [anything(chance, vocabulary) for _ in range(rows)]
    around = torch.full((rows, vocabulary + 5), torch.nan, device=device)
    around[:, :vocabulary] = logits
    found, alive = ours(around[:, :vocabulary], asked, chance.choice(TINY), range(rows))
    assert all(alive)
    assert found == by_torch(logits, asked, range(rows))


@pytest.mark.parametrize(
    ("turn", "asked"),
    list(
        enumerate(
            [
                Sampling(top_p=0.97),
                Sampling(top_k=150),
                Sampling(min_p=0.02, top_k=200, top_p=0.9),
                Sampling(min_p=1e-6),
                Sampling(top_p=0.5, min_p=0.9),
            ]
        )
    ),
)
def test_a_flat_row_is_searched_from_memory(
    turn: int, asked: Sampling, device: torch.device
) -> None:
    logits = torch.rand(2, 333, generator=torch.Generator().manual_seed(1)).to(device) * 2 - 1
    found, _ = ours(logits, [asked] * 2, TINY[turn % 2], range(2))
    assert found == by_torch(logits, [asked] * 2, range(2))


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


@pytest.fixture
def handed_on() -> Iterator[list[Tensor]]:
    """What is known of rows before the last launch, which then finds no logits any more."""
    seen = list[Tensor]()

    def spoil(logits: Tensor, *others: Any, **_: Any) -> None:  # noqa: ANN401
        seen.append(others[5].clone())
        logits.fill_(torch.nan)

    settle.add_pre_run_hook(spoil)
    yield seen
    settle.pre_run_hooks.remove(spoil)


@pytest.mark.parametrize(
    ("asked", "scale", "step"),
    [
        (Sampling(top_p=0.97), 1.0, 0.0),
        (Sampling(top_p=0.6, temperature=40), 3.0, 0.0),
        (Sampling(top_p=0.9, min_p=0.1), 1.0, 0.0),
        (Sampling(top_p=0.9), 1.0, 0.25),  # hundreds tie with the last one that is kept
        (Sampling(top_k=900), 1.0, 0.0),
        (Sampling(top_k=700, min_p=0.01), 1.0, 0.5),
        (Sampling(min_p=0.005), 1.0, 0.0),
    ],
)
def test_a_flat_row_is_searched_by_many_programs(
    asked: Sampling, scale: float, step: float, handed_on: list[Tensor], device: torch.device
) -> None:
    """None of them is left to the last program, which would have to read it again."""
    logits = scale * torch.randn(2, 2500, generator=torch.Generator().manual_seed(3))
    logits = (logits / step).round() * step if step else logits
    logits[:, 2490:] = -torch.inf
    sizes = Sizes(512, 16, 16, capacity=64, chunk=256, slice=512, step=64)
    wanted = by_torch(logits, [asked] * 2, range(2))
    found, _ = ours(logits.to(device), [asked] * 2, sizes, range(2))
    assert found == wanted
    assert {int(kind) for work in handed_on for kind in work[:, 0]} <= {1, 2, 3}


@pytest.mark.parametrize("asked", [Sampling(top_k=40), Sampling(top_p=0.4)])
def test_the_last_of_those_between_two_pivots_is_told_exactly(
    asked: Sampling, handed_on: list[Tensor], device: torch.device
) -> None:
    """Twenty tokens, and far below them eighty, of which most lie in one interval."""
    logits = torch.rand(16, 100, generator=torch.Generator().manual_seed(5)) * 1e-3
    logits[:, ::5] *= 3e5
    logits[:, ::5] += 500
    asked = replace(asked, temperature=1e4)
    wanted = by_torch(logits, [asked] * 16, range(16))
    sizes = Sizes(64, 2, 2, capacity=128, chunk=64, slice=128, step=64)
    logits = logits.to(device)
    assert ours(logits, [asked] * 16, sizes, range(16), Search.ANYWHERE)[0] == wanted
    (work,) = handed_on
    assert int(work[:, 4].min()) > 40


@pytest.mark.parametrize("seed", range(4))
def test_one_program_finds_the_same_alone(seed: int, device: torch.device) -> None:
    chance, logits = random.Random(seed), torch.randn(3, 333, device=device)
    asked = [replace(anything(chance, 333), top_k=300, temperature=1.5) for _ in range(3)]
    alone, _ = ours(logits, asked, TINY[0], range(3), Search.LIKELIEST)
    assert alone == ours(logits, asked, TINY[0], range(3))[0]
    assert alone == by_torch(logits, asked, range(3))


def test_what_is_launched_follows_from_what_is_asked() -> None:
    greedy, plain, few, many = (0, 50, 0.5, 0), (1, 0, 1, 0), (1, 256, 0.5, 0.1), (1, 257, 1, 0)
    assert search_for([]) is search_for([greedy, plain]) is Search.NONE
    assert search_for([greedy, few]) is Search.LIKELIEST
    for one in many, (0.1, 0, 0.999, 0), (1, 0, 1, 0.01):
        assert search_for([few, one, plain]) is Search.ANYWHERE


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
def _bits(out: Any, low: Any, high: Any, tokens: tl.constexpr) -> None:  # noqa: ANN401
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
