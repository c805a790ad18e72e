"""What a sequence's request and past do to its logits, before a token is drawn from them.

All of it follows from the request and the tokens so far, and so can be built anew anywhere;
what is kept grows with the answer, at a cost for each token that does not.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.request import Sampling
from engine.sampling.late import LateMask
from engine.sampling.masks import Grammars, Mask, apply_bits, bits_of, no_bits
from engine.sampling.penalties import Ids, Penalised, Seen, penalise
from engine.scheduling.sequence import Sequence
from engine.scheduling.thinking import Thought

MANY = 512  # biases; more are faster added to a whole row
NONE: Ids = np.empty(0, np.int64)
NOTHING_LEFT = "grammar: what else was asked for leaves no token that fits"


def is_shaped(sampling: Sampling) -> bool:
    """Whether anything is asked for that needs more than a row's own logits."""
    return bool(is_bound(sampling) or sampling.min_tokens or is_penalised(sampling))


def is_bound(sampling: Sampling) -> bool:
    """Whether some tokens are wanted or unwanted, to the answer's end and for whatever reason
    but penalties.
    """
    return bool(
        sampling.logit_bias
        or sampling.allowed_token_ids is not None
        or sampling.bad_words
        or sampling.grammar
    )


def is_early(seq: Sequence) -> bool:
    """Whether `min_tokens` still holds back what would end the answer."""
    return seq.produced < seq.request.sampling.min_tokens


def is_penalised(sampling: Sampling) -> bool:
    """Whether tokens that were there before count less, or more."""
    return bool(
        sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1
    )


@dataclass(slots=True)
class Biases:
    """What is added to a row's logits at `ids`, of which none is there twice: -inf for what
    must not come. Their work in each step is bounded by a row's length, however many they are.
    """

    ids: Ids
    values: NDArray[np.float32]
    _whole: Tensor | None = None

    @classmethod
    def of(cls, bias: Mapping[int, float]) -> "Biases":
        """By token."""
        return cls(np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32))

    def add_to(self, row: Tensor) -> None:
        """All at once, to `row` [vocabulary]."""
        if self._whole is None:
            self._whole = torch.zeros_like(row)
            at = torch.from_numpy(self.ids).to(row.device)
            self._whole[at] = torch.from_numpy(self.values).to(row.device)
        row += self._whole


@dataclass(slots=True)
class Shaping:
    """One sequence's. It is told nothing: it catches up with the tokens before each draw.

    `early` instead of `biases` while `min_tokens` holds back what ends the answer.
    """

    instead: int  # what comes where nothing may
    biases: Biases
    early: Biases
    allowed: Tensor | None = None  # [words] int32
    grammar: Mask | None = None
    seen: Seen | None = None
    words: dict[tuple[int, ...], Ids] = field(default_factory=dict)
    """Of bad words the last tokens, by those before it, of which there are some."""
    lengths: list[int] = field(default_factory=list)  # of those before it
    caught_up: int = 0

    @classmethod
    def of(cls, seq: Sequence, vocabulary: int, grammars: Grammars | None) -> "Shaping":
        """At the end of the prompt; `draw_from` goes on from there."""
        sampling = seq.request.sampling
        ends = tuple(sorted(one for one in seq.end_tokens if one < vocabulary))
        own = sorted(one for one in seq.eos if one < vocabulary)
        bias = dict(sampling.logit_bias)
        bias |= {word[0]: -np.inf for word in sampling.bad_words if len(word) == 1}
        biases = early = Biases.of(bias)
        if sampling.min_tokens:
            early = Biases.of(bias | dict.fromkeys(ends, -np.inf))
        instead, told = next(iter([*ends, *own]), 0), len(seq.request.prompt)
        shaping = cls(instead, biases, early, caught_up=told)
        if sampling.allowed_token_ids is not None:
            shaping.allowed = bits_of(sampling.allowed_token_ids, vocabulary)
        if sampling.grammar is not None and grammars is not None:
            mask = grammars.mask(sampling.grammar, seq.end_tokens)
            marks = sampling.grammar_behind
            shaping.grammar = mask if marks is None else LateMask(mask, Thought(marks))
        if is_penalised(sampling):
            prompt = seq.request.prompt if sampling.repetition_penalty != 1 else ()
            shaping.seen = Seen(prompt)
        shaping._learn(sampling.bad_words)
        return shaping

    def catch_up(self, seq: Sequence) -> None:
        """Take in the tokens that came since."""
        if self.caught_up < len(seq.tokens):
            fresh = seq.tokens[self.caught_up :]
            self.caught_up = len(seq.tokens)
            if self.seen is not None:
                self.seen.add(fresh)
            if self.grammar is not None:
                self.grammar.advance(fresh)

    def biases_behind(self, seq: Sequence, drafted: Seq[int]) -> Biases:
        """With the ends that would come too early."""
        if self.early is self.biases:
            return self.biases
        early = seq.produced + len(drafted) < seq.request.sampling.min_tokens
        return self.early if early else self.biases

    def banned(self, seq: Sequence, drafted: Seq[int]) -> Ids:
        """What would make a bad word whole, each once."""
        if not self.lengths:
            return NONE
        produced = seq.produced + len(drafted)
        if not produced:
            return NONE
        told = min(self.lengths[-1], seq.produced)
        answer = (*seq.tokens[len(seq.tokens) - told :], *drafted)
        begun = (answer[-length:] for length in self.lengths if length <= produced)
        found = [self.words[one] for one in begun if one in self.words]
        if len(found) < 2:
            return found[0] if found else NONE
        return np.unique(np.concatenate(found))

    def _learn(self, bad_words: Seq[tuple[int, ...]]) -> None:
        """Those of one token are biases."""
        words = dict[tuple[int, ...], list[int]]()
        for *begun, last in dict.fromkeys(bad_words):
            if begun:
                words.setdefault(tuple(begun), []).append(last)
        self.words = {begun: np.array(last, np.int64) for begun, last in words.items()}
        self.lengths = sorted({len(begun) for begun in words})


@dataclass(frozen=True, slots=True)
class ShapedRow:
    """A row of logits, and whose it is."""

    row: int
    seq: Sequence
    drafted: tuple[int, ...]
    shaping: Shaping


def shape(logits: Tensor, asked: Seq[ShapedRow]) -> None:
    """Masks, bias, bans and penalties, in this order, in place."""
    catch_up(asked)
    if masked := is_masked(asked):
        bits = bits_for(masked, logits.shape[1])
        apply_bits(logits, [one.row for one in masked], bits)
    _bias(logits, asked)
    _ban(logits, asked)
    if penalised := penalties_of(asked):
        penalise(logits, penalised)


def end_all_the_same(one: ShapedRow) -> int:
    """The token where nothing is left; the answer has failed if that may not end it."""
    grammar = one.shaping.grammar
    if grammar is not None and not one.drafted and not grammar.may_end:
        one.seq.failure = one.seq.failure or NOTHING_LEFT
    return one.shaping.instead


def catch_up(asked: Seq[ShapedRow]) -> None:
    """All take in what came since; before anything else is asked of them."""
    for one in asked:
        one.shaping.catch_up(one.seq)


def is_masked(asked: Seq[ShapedRow]) -> list[ShapedRow]:
    """Those that have a mask at all."""
    return [one for one in asked if one.shaping.allowed is not None or one.shaping.grammar]


def penalties_of(asked: Seq[ShapedRow]) -> list[Penalised]:
    """For those rows that have penalties."""
    return [
        Penalised(one.row, *one.shaping.seen.behind(one.drafted), one.seq.request.sampling)
        for one in asked
        if one.shaping.seen is not None
    ]


def bits_for(asked: Seq[ShapedRow], vocabulary: int) -> Tensor:
    """[rows, words] int32: what these allow. Says of sequences whose grammar failed why."""
    bits = no_bits(len(asked), vocabulary)
    for index, one in enumerate(asked):
        if one.shaping.grammar is None:
            bits[index] = -1
        else:
            one.shaping.grammar.fill(one.drafted, bits, index)
            one.seq.failure = one.shaping.grammar.failure
        if one.shaping.allowed is not None:
            bits[index] &= one.shaping.allowed
    return bits


def _bias(logits: Tensor, asked: Seq[ShapedRow]) -> None:
    few = list[tuple[int, Biases]]()
    for one in asked:
        biases = one.shaping.biases_behind(one.seq, one.drafted)
        if len(biases.ids) > MANY:
            biases.add_to(logits[one.row])
        elif len(biases.ids):
            few.append((one.row, biases))
    if not few:
        return
    lengths = [len(biases.ids) for _, biases in few]
    rows = torch.from_numpy(np.repeat([row for row, _ in few], lengths))
    ids = torch.from_numpy(np.concatenate([biases.ids for _, biases in few]))
    values = torch.from_numpy(np.concatenate([biases.values for _, biases in few]))
    logits[rows.to(logits.device), ids.to(logits.device)] += values.to(logits.device)


def _ban(logits: Tensor, asked: Seq[ShapedRow]) -> None:
    for one in asked:
        banned = one.shaping.banned(one.seq, one.drafted)
        if len(banned):
            logits[one.row, torch.from_numpy(banned).to(logits.device)] = -torch.inf
