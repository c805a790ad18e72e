"""Logits processors: how a request's settings and its tokens so far change a row of logits.

These are token masks and grammars, `logit_bias`, `bad_words`, `min_tokens` and penalties; the
sampler applies them before it samples. A processor's state depends only on the request and the
tokens so far, so another node can rebuild it. Each new token updates it at constant cost.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.request import Sampling
from engine.sampling.deferred_matcher import DeferredMatcher
from engine.sampling.masks import (
    Matcher,
    MatcherFactory,
    apply_bitmask,
    bitmask_of,
    empty_bitmask,
)
from engine.sampling.penalties import Ids, PenalisedRow, TokenCounts, penalise
from engine.scheduling.reasoning import ReasoningTracker
from engine.scheduling.sequence import Sequence

MANY = 512  # biases; if there are more, adding to the whole row is faster
NONE: Ids = np.empty(0, np.int64)
NOTHING_LEFT = "grammar: what else was asked for leaves no token that fits"


def changes_logits(sampling: Sampling) -> bool:
    """Whether the request changes its logits before sampling."""
    return bool(restricts_tokens(sampling) or sampling.min_tokens or is_penalised(sampling))


def restricts_tokens(sampling: Sampling) -> bool:
    """Whether the request bans or favours tokens in all of its answer, penalties aside."""
    return bool(
        sampling.logit_bias
        or sampling.allowed_token_ids is not None
        or sampling.bad_words
        or sampling.grammar
    )


def below_min_tokens(seq: Sequence) -> bool:
    """Whether the answer has fewer than `min_tokens`, so that end tokens are still banned."""
    return seq.produced < seq.request.sampling.min_tokens


def is_penalised(sampling: Sampling) -> bool:
    """Whether the request has a presence, frequency or repetition penalty."""
    return bool(
        sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1
    )


@dataclass(slots=True)
class Biases:
    """Values that are added to a row's logits at distinct token `ids`; -inf bans a token.

    Each step's work is bounded by the length of a row, however many biases there are.
    """

    ids: Ids
    values: NDArray[np.float32]
    _whole: Tensor | None = None

    @classmethod
    def of(cls, bias: Mapping[int, float]) -> "Biases":
        """Biases from a mapping of token ids to values."""
        return cls(np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32))

    def add_to(self, row: Tensor) -> None:
        """Add all biases to `row` [vocabulary], in place."""
        if self._whole is None:
            self._whole = torch.zeros_like(row)
            at = torch.from_numpy(self.ids).to(row.device)
            self._whole[at] = torch.from_numpy(self.values).to(row.device)
        row += self._whole


@dataclass(slots=True)
class LogitsProcessor:
    """The state of one sequence. `catch_up` reads the sequence's new tokens before each step.

    While the answer has fewer than `min_tokens`, `early` applies instead of `biases`.
    """

    instead: int  # the token to emit if no token is allowed
    biases: Biases
    early: Biases  # `biases`, and bans of the end tokens
    allowed: Tensor | None = None  # the bitmask of `allowed_token_ids`, [words] int32
    matcher: Matcher | None = None
    token_counts: TokenCounts | None = None
    words: dict[tuple[int, ...], Ids] = field(default_factory=dict)
    """Bad words of several tokens: all tokens but the last, to the possible last ones."""
    lengths: list[int] = field(default_factory=list)  # of the keys of `words`
    caught_up: int = 0  # how many of the sequence's tokens were read

    @classmethod
    def of(
        cls, seq: Sequence, vocabulary: int, grammars: MatcherFactory | None
    ) -> "LogitsProcessor":
        """The state at the end of the prompt; raises GrammarRefused."""
        sampling = seq.request.sampling
        ends = tuple(sorted(one for one in seq.end_tokens if one < vocabulary))
        own = sorted(one for one in seq.eos if one < vocabulary)
        bias = dict(sampling.logit_bias)
        bias |= {word[0]: -np.inf for word in sampling.bad_words if len(word) == 1}
        biases = early = Biases.of(bias)
        if sampling.min_tokens:
            early = Biases.of(bias | dict.fromkeys(ends, -np.inf))
        instead, told = next(iter([*ends, *own]), 0), len(seq.request.prompt)
        processor = cls(instead, biases, early, caught_up=told)
        if sampling.allowed_token_ids is not None:
            processor.allowed = bitmask_of(sampling.allowed_token_ids, vocabulary)
        if sampling.grammar is not None and grammars is not None:
            matcher = grammars.matcher(sampling.grammar, seq.end_tokens)
            marks = sampling.grammar_behind
            processor.matcher = (
                matcher if marks is None else DeferredMatcher(matcher, ReasoningTracker(marks))
            )
        if is_penalised(sampling):
            prompt = seq.request.prompt if sampling.repetition_penalty != 1 else ()
            processor.token_counts = TokenCounts(prompt)
        processor._learn(sampling.bad_words)
        return processor

    def catch_up(self, seq: Sequence) -> None:
        """Read the tokens that the sequence got since the last call."""
        if self.caught_up < len(seq.tokens):
            fresh = seq.tokens[self.caught_up :]
            self.caught_up = len(seq.tokens)
            if self.token_counts is not None:
                self.token_counts.add(fresh)
            if self.matcher is not None:
                self.matcher.advance(fresh)

    def biases_after(self, seq: Sequence, drafted: Seq[int]) -> Biases:
        """The biases of the row that follows the sequence and `drafted`."""
        if self.early is self.biases:
            return self.biases
        early = seq.produced + len(drafted) < seq.request.sampling.min_tokens
        return self.early if early else self.biases

    def banned(self, seq: Sequence, drafted: Seq[int]) -> Ids:
        """The distinct tokens that would complete a bad word of several tokens."""
        if not self.lengths:
            return NONE
        produced = seq.produced + len(drafted)
        told = min(self.lengths[-1], seq.produced)
        answer = (*seq.tokens[len(seq.tokens) - told :], *drafted)
        begun = (answer[-length:] for length in self.lengths if length <= produced)
        found = [self.words[one] for one in begun if one in self.words]
        if len(found) < 2:
            return found[0] if found else NONE
        return np.unique(np.concatenate(found))

    def _learn(self, bad_words: Seq[tuple[int, ...]]) -> None:
        """Index the bad words of several tokens; those of one token are biases."""
        words = dict[tuple[int, ...], list[int]]()
        for *begun, last in dict.fromkeys(bad_words):
            if begun:
                words.setdefault(tuple(begun), []).append(last)
        self.words = {begun: np.array(last, np.int64) for begun, last in words.items()}
        self.lengths = sorted({len(begun) for begun in words})


@dataclass(frozen=True, slots=True)
class ProcessedRow:
    """A row of logits, and the sequence and processor that it belongs to.

    The row predicts the token behind the sequence's tokens and the `drafted` ones.
    """

    row: int
    seq: Sequence
    drafted: tuple[int, ...]
    processor: LogitsProcessor


def process_logits(logits: Tensor, asked: Seq[ProcessedRow]) -> None:
    """Apply masks, biases, bans and penalties, in this order, to `logits` in place."""
    catch_up(asked)
    if masked := masked_rows(asked):
        bits = bitmask_for(masked, logits.shape[1])
        apply_bitmask(logits, [one.row for one in masked], bits)
    _bias(logits, asked)
    _ban(logits, asked)
    if penalised := penalties_of(asked):
        penalise(logits, penalised)


def force_end_token(one: ProcessedRow) -> int:
    """The token to emit if no token is allowed.

    The sequence fails if its grammar does not allow the answer to end there.
    """
    grammar = one.processor.matcher
    if grammar is not None and not one.drafted and not grammar.may_end:
        one.seq.failure = one.seq.failure or NOTHING_LEFT
    return one.processor.instead


def catch_up(asked: Seq[ProcessedRow]) -> None:
    """Let all processors read their sequences' new tokens; call this before anything else."""
    for one in asked:
        one.processor.catch_up(one.seq)


def masked_rows(asked: Seq[ProcessedRow]) -> list[ProcessedRow]:
    """The rows that have a bitmask: from `allowed_token_ids` or from a grammar."""
    return [one for one in asked if one.processor.allowed is not None or one.processor.matcher]


def penalties_of(asked: Seq[ProcessedRow]) -> list[PenalisedRow]:
    """Penalties and token counts, of the rows that have penalties."""
    return [
        PenalisedRow(
            one.row,
            *one.processor.token_counts.with_drafted(one.drafted),
            one.seq.request.sampling,
        )
        for one in asked
        if one.processor.token_counts is not None
    ]


def bitmask_for(asked: Seq[ProcessedRow], vocabulary: int) -> Tensor:
    """[rows, words] int32: the tokens that each row allows.

    A grammar that cannot continue sets its sequence's `failure` to the reason.
    """
    bits = empty_bitmask(len(asked), vocabulary)
    for index, one in enumerate(asked):
        if one.processor.matcher is None:
            bits[index] = -1
        else:
            one.processor.matcher.fill_bitmask(one.drafted, bits, index)
            one.seq.failure = one.processor.matcher.failure
        if one.processor.allowed is not None:
            bits[index] &= one.processor.allowed
    return bits


def _bias(logits: Tensor, asked: Seq[ProcessedRow]) -> None:
    few = list[tuple[int, Biases]]()
    for one in asked:
        biases = one.processor.biases_after(one.seq, one.drafted)
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


def _ban(logits: Tensor, asked: Seq[ProcessedRow]) -> None:
    for one in asked:
        banned = one.processor.banned(one.seq, one.drafted)
        if len(banned):
            logits[one.row, torch.from_numpy(banned).to(logits.device)] = -torch.inf
