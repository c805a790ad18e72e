"""What requests and their pasts do to logits, against the obvious sampler."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from engine.errors import UnusableSampling
from engine.request import Grammar, Request, RequestId, Sampling
from engine.sampling.masks import apply_bitmask, bitmask_of, empty_bitmask
from engine.sampling.sampler import Sampler, SamplerRow
from tests.fakes.sampling import Parities, draw_at, kept, obvious, sequence

VOCABULARY = 45
EOS = frozenset({7, 30})
ROUNDS = 60
RARE = 10  # expected in all draws
NORMAL = 3.09  # exceeded once in a thousand; Wilson and Hilferty make it a chi-square's bound

PLAIN = Sampling(temperature=0)
ASKED = [
    Sampling(presence_penalty=1.7),
    Sampling(presence_penalty=-2),
    Sampling(frequency_penalty=0.9),
    Sampling(frequency_penalty=-0.6),
    Sampling(repetition_penalty=1.6),
    Sampling(repetition_penalty=0.7),
    Sampling(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25),
    Sampling(repetition_penalty=1e-30, frequency_penalty=1),
    Sampling(repetition_penalty=1e30),
    Sampling(logit_bias=((4, 5.0), (5, -100.0), (44, 3.5))),
    Sampling(allowed_token_ids=(3, 8, 31, 32, 33, 44)),
    Sampling(bad_words=((9,), (1, 2), (2, 2), (1, 2, 3), (3, 1, 2))),
    Sampling(min_tokens=9, stop_token_ids=(2, 11, 100_000)),
    Sampling(min_tokens=9, stop_token_ids=(2, 11), ignore_eos=True),
    Sampling(
        repetition_penalty=1.5,
        logit_bias=((2, 4.0), (3, 4.0)),
        allowed_token_ids=(1, 2, 3, 4, 7),
        bad_words=((4,), (2, 3)),
        min_tokens=3,
        frequency_penalty=0.5,
    ),
]
SHAPES = [
    replace(one, **kind)
    for one in ASKED
    for kind in (
        {"temperature": 0},
        {"temperature": 1.3},
        {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    )
]


def past(chance: random.Random, most: int = 12) -> tuple[int, ...]:
    """Few kinds of tokens, so that they meet again."""
    return tuple(chance.randrange(1, 5) for _ in range(chance.randrange(most)))


def drawings(samplings: Sequence[Sampling], chance: random.Random) -> Iterator[SamplerRow]:
    """One for each, behind a past of its own, part of it drafted."""
    for sampling in samplings:
        request = Request(RequestId("r"), (1, *past(chance)), sampling, past(chance, 4))
        seq = sequence(sampling, request.prompt, (*request.generated, *past(chance)), EOS)
        yield SamplerRow(seq, past(chance, 4))


def logits_of(rows: int, seed: int) -> Tensor:
    """Those that are asked about are likely."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn((rows, VOCABULARY), generator=generator)
    logits[:, :12] += 2
    return logits


def expected(logits: Tensor, draws: Sequence[SamplerRow]) -> list[int]:
    return [obvious(row, draw) for row, draw in zip(logits.tolist(), draws, strict=True)]


@pytest.mark.parametrize("asked", ASKED)
def test_each_is_what_the_obvious_one_does(asked: Sampling) -> None:
    chance, sampler = random.Random(1), Sampler(VOCABULARY)
    draws = list(drawings([replace(asked, temperature=0)] * ROUNDS, chance))
    logits = logits_of(ROUNDS, 3)
    plain = logits.argmax(1).tolist()
    want = expected(logits, draws)
    assert sampler.sample(logits, draws).tokens == want
    assert want != plain  # it did something


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_is_what_each_is_alone(seed: int) -> None:
    chance, sampler = random.Random(seed), Sampler(VOCABULARY)
    draws = list(drawings([*SHAPES, PLAIN, Sampling()], chance))
    chance.shuffle(draws)
    logits = logits_of(len(draws), seed)
    alone = [
        Sampler(VOCABULARY).sample(row.unsqueeze(0).clone(), [draw]).tokens[0]
        for row, draw in zip(logits, draws, strict=True)
    ]
    assert alone == expected(logits, draws)
    assert sampler.sample(logits, draws).tokens == alone


def test_pasts_that_grow_are_pasts_that_were_always_there() -> None:
    """What is kept from draw to draw, against the obvious one, which keeps nothing."""
    chance, sampler = random.Random(5), Sampler(VOCABULARY)
    draws = list(drawings(SHAPES, chance))
    for turn in range(40):
        logits = logits_of(len(draws), turn)
        want = expected(logits, draws)
        assert sampler.sample(logits, draws).tokens == want
        for draw, token in zip(draws, want, strict=True):
            draw.seq.tokens += [token, *past(chance, 2)]
        draws = [SamplerRow(draw.seq, past(chance, 3)) for draw in draws]


@pytest.mark.parametrize("asked", SHAPES)
def test_split_is_whole(asked: Sampling) -> None:
    """Part of the answer brought along as `generated`, and all of it said here."""
    prompt, answer = (1, 2, 3, 4, 4), (4, 2, 2, 4, 1)
    whole = sequence(asked, prompt, answer, EOS)
    logits = logits_of(1, 8)
    (want,) = Sampler(VOCABULARY).sample(logits.clone(), [SamplerRow(whole)]).tokens
    for done in range(len(answer)):
        brought = replace(whole.request, generated=answer[:done])
        seq = type(whole)(brought, EOS)
        seq.tokens += answer[done:-1]
        assert seq.produced == len(answer) - 1
        draw = SamplerRow(seq, answer[-1:])
        assert Sampler(VOCABULARY).sample(logits.clone(), [draw]).tokens == [want]


def test_penalties_are_not_of_the_prompt_unless_they_repeat() -> None:
    flat = torch.zeros((1, VOCABULARY))
    flat[0, 3] = 1
    for sampling, token in (
        (replace(PLAIN, presence_penalty=2), 3),
        (replace(PLAIN, frequency_penalty=2), 3),
        (replace(PLAIN, repetition_penalty=1.01), 3),
        (replace(PLAIN, repetition_penalty=1.01, presence_penalty=2), 3),
        (replace(PLAIN, repetition_penalty=1.01, frequency_penalty=2), 3),
        (replace(PLAIN, repetition_penalty=1.01, logit_bias=((4, 0.995),)), 4),
    ):
        draw = SamplerRow(sequence(sampling, prompt=(3, 3)))
        assert Sampler(VOCABULARY).sample(flat.clone(), [draw]).tokens == [token]


@pytest.mark.parametrize(
    ("prompt", "answer", "token"),
    [
        ((1, 2), (), 3),
        ((1,), (2,), 3),
        ((), (1, 2), 4),
        ((2,), (1, 2), 4),
        ((), (3, 1, 2), 4),
        ((), (1, 2, 2), 3),
        ((), (2, 1), 3),
    ],
)
def test_bad_words_are_whole_where_the_answer_has_all_of_them(
    prompt: tuple[int, ...], answer: tuple[int, ...], token: int
) -> None:
    """What of them is in the prompt does not count."""
    logits = torch.zeros((1, VOCABULARY))
    logits[0, 3], logits[0, 4] = 2, 1
    seq = sequence(replace(PLAIN, bad_words=((1, 2, 3), (9, 9, 9, 9))), prompt, answer)
    assert Sampler(VOCABULARY).sample(logits, [SamplerRow(seq)]).tokens == [token]


@pytest.mark.parametrize(
    "shape",
    [
        Sampling(temperature=0.7, repetition_penalty=1.4, frequency_penalty=0.3),
        Sampling(temperature=1.5, logit_bias=((4, 1.0), (20, 2.0)), bad_words=((9,), (2, 8))),
        Sampling(top_p=0.9, presence_penalty=2.0, temperature=1.3, logit_bias=((30, 3.0),)),
        Sampling(temperature=2, top_k=6, allowed_token_ids=tuple(range(1, 45, 2))),
        Sampling(temperature=1.2, min_p=0.05, min_tokens=9, stop_token_ids=(3,)),
    ],
)
def test_what_is_left_comes_as_often_as_it_should(shape: Sampling) -> None:
    """Chi-square, with the least likely thrown together; each draw under a seed of its own."""
    count, logits = 20_000, logits_of(1, 4)
    seqs = (sequence(replace(shape, seed=seed), (1, 4, 4), (2, 4, 2)) for seed in range(count))
    draws = [SamplerRow(seq) for seq in seqs]
    left = kept(logits[0].tolist(), draws[0])
    total = sum(math.exp(x) for x in left.values())
    expected = {token: count * math.exp(x) / total for token, x in left.items()}
    seen = Counter(Sampler(VOCABULARY).sample(logits.repeat(count, 1), draws).tokens)
    assert seen.keys() <= left.keys()
    rare = {token for token, want in expected.items() if want < RARE}
    cells = [(seen[token], want) for token, want in expected.items() if token not in rare]
    if rare:
        cells.append((sum(seen[one] for one in rare), sum(expected[one] for one in rare)))
    assert len(cells) > 4
    chi_square = sum((got - want) ** 2 / want for got, want in cells)
    freedom = len(cells) - 1
    bound = freedom * (1 - 2 / (9 * freedom) + NORMAL * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < bound


@pytest.mark.parametrize(
    ("sampling", "eos", "token"),
    [
        (Sampling(allowed_token_ids=(5,), bad_words=((5, 5),)), EOS, 7),
        (Sampling(allowed_token_ids=(5,), bad_words=((5, 5),), ignore_eos=True), EOS, 7),
        (Sampling(allowed_token_ids=(5,), bad_words=((5, 5),), stop_token_ids=(6,)), EOS, 6),
        (Sampling(allowed_token_ids=(5, 6), bad_words=((5, 5), (5, 6))), frozenset(), 0),
        (Sampling(allowed_token_ids=(7,), min_tokens=9), EOS, 7),
    ],
)
@pytest.mark.parametrize(
    "shape", [{}, {"temperature": 0}, {"top_k": 3, "top_p": 0.5, "min_p": 0.1}]
)
def test_where_nothing_may_come_an_end_comes(
    sampling: Sampling, eos: frozenset[int], token: int, shape: dict[str, float]
) -> None:
    """And no row beside it is touched."""
    seq = sequence(replace(sampling, **shape), answer=(5,), eos=eos)
    logits = logits_of(2, 0)
    want = expected(logits[1:], [draw_at(Sampling(), 3)])
    drawn = Sampler(VOCABULARY).sample(logits, [SamplerRow(seq), draw_at(Sampling(), 3)])
    assert drawn.tokens == [token, *want]


@pytest.mark.parametrize("vocabulary", [31, 32, 33, 64, 100])
def test_bits_are_tokens(vocabulary: int) -> None:
    allowed = set(range(0, vocabulary, 3)) | {vocabulary - 1}
    logits = torch.zeros((3, vocabulary))
    bits = torch.stack([bitmask_of(allowed, vocabulary), bitmask_of({0}, vocabulary)])
    assert empty_bitmask(2, vocabulary).shape == bits.shape
    apply_bitmask(logits, [2, 0], bits)
    left = [set(torch.nonzero(row.isfinite())[:, 0].tolist()) for row in logits]
    assert left == [{0}, set(range(vocabulary)), allowed]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_grammar_is_told_every_token_once_and_obeyed(temperature: float) -> None:
    parities, chance = Parities(VOCABULARY), random.Random(2)
    sampler = Sampler(VOCABULARY, parities)
    sampling = Sampling(temperature=temperature, grammar=Grammar("regex", "1"))
    seq = sequence(sampling, answer=(5, 6, 9))
    for turn in range(20):
        drafted = tuple(
            2 * chance.randrange(20) + (len(seq.tokens) - 1 + place) % 2
            for place in range(turn % 3)
        )
        logits = logits_of(3, turn)
        draws = [SamplerRow(seq, drafted[:place]) for place in range(len(drafted) + 1)]
        tokens = sampler.sample(logits[: len(draws)], draws).tokens
        parity = [(len(seq.tokens) - 1 + place) % 2 for place in range(len(draws))]
        assert [token % 2 for token in tokens] == parity
        seq.tokens.append(tokens[0])
    (mask,) = parities.made
    assert mask.told == seq.tokens[2:-1]


def test_a_grammar_that_nobody_can_make_is_refused() -> None:
    seq = sequence(Sampling(grammar=Grammar("regex", "1")))
    Sampler(VOCABULARY, Parities(VOCABULARY)).check(seq)
    with pytest.raises(UnusableSampling, match="grammar"):
        Sampler(VOCABULARY).check(seq)


def test_who_is_left_nothing_to_say_is_told_by_which_field() -> None:
    everything = tuple(range(VOCABULARY))
    for field, sampling in {
        "min_tokens": Sampling(min_tokens=1, stop_token_ids=everything),
        "bad_words": Sampling(bad_words=tuple((token,) for token in everything)),
    }.items():
        with pytest.raises(UnusableSampling, match=field) as refusal:
            Sampler(VOCABULARY).check(sequence(sampling))
        assert refusal.value.param == field


def test_a_grammar_and_a_list_are_both_obeyed() -> None:
    sampling = Sampling(grammar=Grammar("regex", "1"), allowed_token_ids=(2, 4, 13, 42))
    for number in range(10):
        seq = sequence(replace(sampling, seed=number))
        sampler = Sampler(VOCABULARY, Parities(VOCABULARY))
        assert sampler.sample(logits_of(1, number), [SamplerRow(seq)]).tokens == [13]


def test_a_past_goes_with_its_sequence() -> None:
    sampler = Sampler(VOCABULARY)
    seqs = [sequence(one) for one in ASKED]
    sampler.sample(logits_of(len(seqs), 0), [SamplerRow(seq) for seq in seqs])
    assert len(sampler._processors) == len(ASKED)
    del seqs
    sampler.sample(logits_of(1, 0), [SamplerRow(sequence(PLAIN))])
    assert not sampler._processors
