"""The sampler again, slow and in float64: one row, one rule after the other."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from engine.request import Grammar, Request, RequestId, Sampling
from engine.sampling.noise import gumbel, noise_key
from engine.sampling.penalties import LARGEST_LOGIT
from engine.sampling.sampler import SamplerRow
from engine.scheduling.sequence import Sequence as Seq

NAME = RequestId("r")


def sequence(
    sampling: Sampling,
    prompt: tuple[int, ...] = (1, 2),
    answer: tuple[int, ...] = (),
    eos: frozenset[int] = frozenset(),
) -> Seq:
    """One that has said `answer` here."""
    seq = Seq(Request(NAME, prompt, sampling), eos)
    seq.tokens += answer
    return seq


def draw_at(sampling: Sampling, position: int) -> SamplerRow:
    """Behind `position` tokens that nobody looks at."""
    seq = Seq(Request(NAME, (), sampling))
    seq.tokens = cast("Any", range(position))
    return SamplerRow(seq)


def obvious(logits: Sequence[float], draw: SamplerRow) -> int:
    """The token of one row."""
    sampling, left = draw.seq.request.sampling, kept(logits, draw)
    if not left:
        ends = sorted(draw.seq.end_tokens) or sorted(draw.seq.eos)
        return ends[0] if ends else 0
    if sampling.temperature == 0:
        return max(left, key=lambda token: left[token])
    position = len(draw.seq.tokens) + len(draw.drafted)
    key = torch.tensor([noise_key(sampling.seed, sampling.sample_index, position)])
    noise = gumbel(key, torch.arange(len(logits)))[0].tolist()
    return max(left, key=lambda token: left[token] + noise[token])


def kept(logits: Sequence[float], draw: SamplerRow) -> dict[int, float]:
    """What is left to draw from; what ties with the last one kept is kept."""
    sampling = draw.seq.request.sampling
    left = {token: x for token, x in shaped(logits, draw).items() if x > -math.inf}
    if sampling.temperature == 0 or not left:
        return left
    left = {token: x / sampling.temperature for token, x in left.items()}
    most = max(left.values())
    left = {t: x for t, x in left.items() if math.exp(x - most) >= sampling.min_p}
    if 0 < sampling.top_k < len(left):
        last = sorted(left.values())[-sampling.top_k]
        left = {token: x for token, x in left.items() if x >= last}
    return nucleus(left, sampling.top_p)


def shaped(logits: Sequence[float], draw: SamplerRow) -> dict[int, float]:
    """Masks, bias, bans and penalties."""
    sampling, prompt = draw.seq.request.sampling, draw.seq.request.prompt
    answer = (*draw.seq.tokens[len(prompt) :], *draw.drafted)
    left = dict(enumerate(logits))
    for token, bias in sampling.logit_bias:
        left[token] += bias
    banned = {word[-1] for word in sampling.bad_words if comes_whole(word, answer)}
    if len(answer) < sampling.min_tokens:
        banned |= draw.seq.end_tokens
    if sampling.allowed_token_ids is not None:
        banned |= left.keys() - set(sampling.allowed_token_ids)
    for token, x in left.items():
        left[token] = (
            -math.inf if token in banned else penalised(x, token, prompt, answer, sampling)
        )
    return left


def comes_whole(word: tuple[int, ...], answer: tuple[int, ...]) -> bool:
    """Whether only its last token is missing at the end."""
    begun = word[:-1]
    return not begun or answer[-len(begun) :] == begun


def penalised(
    x: float, token: int, prompt: tuple[int, ...], answer: tuple[int, ...], sampling: Sampling
) -> float:
    """As CTRL and OpenAI define penalties."""
    if token in prompt or token in answer:
        repetition = sampling.repetition_penalty
        x = x / repetition if x > 0 else x * repetition
    count = answer.count(token)
    x -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
    return min(x, LARGEST_LOGIT)


def nucleus(left: Mapping[int, float], top_p: float) -> dict[int, float]:
    """The smallest set of the likeliest that reaches top_p."""
    most = max(left.values())
    total = sum(math.exp(x - most) for x in left.values())
    mass, last = 0.0, -math.inf
    for x in sorted(left.values(), reverse=True):
        if mass >= top_p:
            break
        mass, last = mass + math.exp(x - most) / total, x
    return {token: x for token, x in left.items() if x >= last}


class Parity:
    """A grammar: tokens are even and odd in turn; what breaks it ends it.

    Its end is token 0. It counts what it was told, which must be every token once.
    """

    failure: str | None = None
    may_end = True

    def __init__(self, grammar: Grammar, vocabulary: int) -> None:
        self.first, self.vocabulary = int(grammar.source), vocabulary
        self.told = list[int]()

    def advance(self, tokens: Sequence[int]) -> None:
        self.told += tokens

    def fill_bitmask(self, drafted: Sequence[int], bits: Tensor, row: int) -> None:
        allowed = self.allowed([*self.told, *drafted])
        for word in range(bits.shape[1]):
            value = sum(1 << bit for bit in range(32) if 32 * word + bit in allowed)
            bits[row, word] = value - (value >> 31 << 32)

    def allowed(self, answer: Sequence[int]) -> set[int]:
        """What may follow."""
        fits = all((self.first + place) % 2 == token % 2 for place, token in enumerate(answer))
        start = (self.first + len(answer)) % 2
        return set(range(start, self.vocabulary, 2)) if fits else {0}


class Parities:
    """Makes them, and keeps them to be looked at."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, self.made = vocabulary, list[Parity]()

    def ready(self, grammar: Grammar) -> bool:
        return bool(grammar)

    def matcher(self, grammar: Grammar, ends: frozenset[int]) -> Parity:
        self.made.append(Parity(grammar, self.vocabulary))
        return self.made[-1]
