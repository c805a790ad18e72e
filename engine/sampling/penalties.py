"""Repetition, frequency and presence penalties, and the token counts that they need.

For the logit x of a token that occurs `count` times in the answer: first, if it is in prompt or
answer, x / repetition if x > 0, else x * repetition (Keskar et al., CTRL, 2019); then
x - frequency * count - presence * (count > 0). As vLLM and OpenAI define them.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.request import Sampling

Ids = NDArray[np.int64]
Counts = NDArray[np.float32]
FIRST_CAPACITY = 64
LARGEST_LOGIT = 1e30  # a tiny factor would give infinity, and infinity - infinity is NaN


class TokenCounts:
    """The distinct tokens of one sequence, and how often each occurs in its answer.

    Adding a token has constant cost. `prompt` is empty unless there is a repetition penalty,
    because the others do not count prompt tokens.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        self._slots = {token: slot for slot, token in enumerate(dict.fromkeys(prompt))}
        capacity = FIRST_CAPACITY + 2 * len(self._slots)
        self._ids, self._counts = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
        self._ids[: len(self._slots)] = list(self._slots)

    def add(self, tokens: Iterable[int]) -> None:
        """Count `tokens` that were appended to the answer."""
        for token in tokens:
            slot = self._slots.setdefault(token, len(self._slots))
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[slot] = token
            self._counts[slot] += 1

    def with_drafted(self, drafted: Seq[int]) -> tuple[Ids, Counts]:
        """[distinct] tokens and their counts as if `drafted` were accepted; read only."""
        used = len(self._slots)
        ids, counts = self._ids[:used], self._counts[:used]
        if not drafted:
            return ids, counts
        new = [token for token in dict.fromkeys(drafted) if token not in self._slots]
        slots = {token: used + index for index, token in enumerate(new)}
        ids = np.concatenate([ids, np.array(new, np.int64)])
        counts = np.concatenate([counts, np.zeros(len(new), np.float32)])
        for token in drafted:
            counts[slots[token] if token in slots else self._slots[token]] += 1
        return ids, counts


@dataclass(frozen=True, slots=True)
class PenalisedRow:
    """A row of logits, the tokens its sequence has already, their counts, and the penalties."""

    row: int
    ids: Ids
    counts: Counts
    sampling: Sampling


def penalise(logits: Tensor, asked: Seq[PenalisedRow]) -> None:
    """Apply penalties to `logits` [rows, vocabulary] float32 at counted tokens, in place."""
    lengths = [len(one.ids) for one in asked]

    def spread(values: Iterable[float]) -> Tensor:
        repeated = np.repeat(np.array(list(values), np.float32), lengths)
        return torch.from_numpy(repeated).to(logits.device)

    rows = torch.from_numpy(np.repeat([one.row for one in asked], lengths)).to(logits.device)
    ids = torch.from_numpy(np.concatenate([one.ids for one in asked])).to(logits.device)
    counts = torch.from_numpy(np.concatenate([one.counts for one in asked])).to(logits.device)
    repetition = spread(one.sampling.repetition_penalty for one in asked)
    found = logits[rows, ids]
    found = torch.where(found > 0, found / repetition, found * repetition)
    found -= spread(one.sampling.frequency_penalty for one in asked) * counts
    found -= spread(one.sampling.presence_penalty for one in asked) * (counts > 0)
    logits[rows, ids] = found.clamp_(max=LARGEST_LOGIT)
