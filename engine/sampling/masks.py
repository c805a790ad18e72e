"""Token bitmasks: which tokens may come next, by `allowed_token_ids` and by grammars.

A row of a bitmask is [ceil(vocabulary / 32)] int32, as grammar libraries fill it: token t is
bit t % 32 of word t // 32; 1 allows the token.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from engine.request import Grammar

WORD_BITS = 32
BYTES = np.arange(256, dtype=np.uint8)[:, None]
LOWEST = np.array([-np.inf, 0], np.float32)
BYTE_FLOORS = torch.from_numpy(LOWEST[np.unpackbits(BYTES, axis=1, bitorder="little")])
"""[256, 8] float32: what each byte value of a mask adds to the logits of its eight tokens."""


class Matcher(Protocol):
    """The state of a grammar (structured output) at the end of one sequence's answer so far.

    The sampler calls `advance` with each token of the answer once, in order. A matcher is
    rebuilt elsewhere by advancing a new one over all of the answer.
    """

    @property
    def failure(self) -> str | None:
        """Why the answer cannot continue in its grammar; then only an end token is allowed."""

    @property
    def may_end(self) -> bool:
        """Whether the grammar accepts the answer as complete."""

    def advance(self, tokens: Seq[int]) -> None:
        """Append tokens to the answer. A token that does not fit sets `failure`; no error."""

    def fill_bitmask(self, drafted: Seq[int], bits: Tensor, row: int) -> None:
        """Write row `row` of `bits` [rows, words] int32: the tokens allowed behind `drafted`.

        If the grammar does not allow `drafted`, the row's content does not matter: that draft
        is rejected.
        """


class MatcherFactory(Protocol):
    """Compiles grammars, and makes a matcher for each sequence that has one."""

    def ready(self, grammar: Grammar) -> bool:
        """Whether `matcher` would return at once; if not, compilation begins or continues."""

    def matcher(self, grammar: Grammar, ends: frozenset[int]) -> Matcher:
        """A matcher at the start of an answer that ends with one of the tokens `ends`.

        Raises GrammarRefused. Waits for compilation if the grammar is not `ready`.
        """


def empty_bitmask(rows: int, vocabulary: int) -> Tensor:
    """[rows, words] int32 zeros on the CPU."""
    return torch.zeros((rows, -(-vocabulary // WORD_BITS)), dtype=torch.int32)


def bitmask_of(tokens: Iterable[int], vocabulary: int) -> Tensor:
    """[words] int32 with the bits of `tokens` set."""
    words = -(-vocabulary // WORD_BITS)
    allowed = np.zeros(words * WORD_BITS, dtype=np.bool_)
    allowed[list(tokens)] = True
    return torch.from_numpy(np.packbits(allowed, bitorder="little").view(np.int32))


def apply_bitmask(logits: Tensor, rows: Seq[int], bits: Tensor) -> None:
    """Set `logits` [.., vocabulary] at `rows` to -inf where `bits` [rows, words] are 0.

    It looks up and adds eight tokens at a time; selecting one by one takes 40 times as long.
    """
    packed = bits.view(torch.uint8).to(logits.device).int()
    floors = embedding(packed, BYTE_FLOORS.to(logits.device)).flatten(1)
    for row, floor in zip(rows, floors[:, : logits.shape[1]], strict=True):
        logits[row] += floor
