"""Which tokens may come next at all: the client's list, and grammars.

A mask is a row of bits, as grammar libraries fill them: [ceil(vocabulary / 32)] int32, token t
is bit t % 32 of word t // 32.
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
"""[256, 8] float32: what a byte of a mask adds to the logits of its tokens."""


class Mask(Protocol):
    """What a grammar allows behind one sequence's answer so far.

    It is told of every token of the answer once, in order, and rebuilt by being told them all.
    """

    @property
    def failure(self) -> str | None:
        """Why the answer cannot go on by its grammar, once it cannot: only an end fits then."""

    @property
    def may_end(self) -> bool:
        """Whether the answer is complete as it is."""

    def advance(self, tokens: Seq[int]) -> None:
        """These came, for good. What the grammar does not allow is no error, but a failure."""

    def fill(self, drafted: Seq[int], bits: Tensor, row: int) -> None:
        """Write row `row` of `bits` [rows, words] int32: what may follow, had `drafted` come.

        Behind drafted tokens that are not allowed anything will do: nobody looks.
        """


class Grammars(Protocol):
    """Makes masks; one for each sequence that has a grammar. `ends` end its answer."""

    def ready(self, grammar: Grammar) -> bool:
        """Whether `mask` answers at once; where not, work on it has begun."""

    def mask(self, grammar: Grammar, ends: frozenset[int]) -> Mask:
        """At the start of an answer; raises GrammarRefused. Waits where it is not `ready`."""


def no_bits(rows: int, vocabulary: int) -> Tensor:
    """[rows, words] int32 on the CPU, to be filled."""
    return torch.zeros((rows, -(-vocabulary // WORD_BITS)), dtype=torch.int32)


def bits_of(tokens: Iterable[int], vocabulary: int) -> Tensor:
    """[words] int32 with the bits of `tokens` set."""
    words = -(-vocabulary // WORD_BITS)
    allowed = np.zeros(words * WORD_BITS, dtype=np.bool_)
    allowed[list(tokens)] = True
    return torch.from_numpy(np.packbits(allowed, bitorder="little").view(np.int32))


def apply_bits(logits: Tensor, rows: Seq[int], bits: Tensor) -> None:
    """Ban at each of `rows` of `logits` [.., vocabulary] what `bits` [rows, words] lack.

    Eight tokens at a time are looked up and added: to choose one by one takes 40 times as long.
    """
    packed = bits.view(torch.uint8).to(logits.device).int()
    floors = embedding(packed, BYTE_FLOORS.to(logits.device)).flatten(1)
    for row, floor in zip(rows, floors[:, : logits.shape[1]], strict=True):
        logits[row] += floor
