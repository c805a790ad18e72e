"""A checkpoint's tokenizer as llguidance reads it, and which tokens are text at all."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from engine.errors import GrammarRefused

TOKENIZER = "tokenizer.json"
WORD_BITS = 32

Words = NDArray[np.int32]
"""A set of tokens: token t is bit t % 32 of word t // 32."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`size` tokens have a logit; `text` are those a grammar may write, and so no special one.

    `tokenizer` may know more tokens than have a logit, or fewer.
    """

    tokenizer: LLTokenizer
    size: int
    text: Words
    eos: tuple[int, ...]

    def words(self, tokens: Iterable[int]) -> Words:
        """The set of these; what has no logit is left out."""
        return words_of((token for token in tokens if token < self.size), self.size)


def load_vocabulary(folder: Path, size: int, eos: tuple[int, ...]) -> Vocabulary:
    """Read `folder`'s tokenizer.json; raises GrammarRefused, which says why not."""
    file = folder / TOKENIZER
    try:
        said = json.loads(file.read_bytes())
        special = {one["id"] for one in said.get("added_tokens", ()) if one["special"]}
        plain = json.dumps({**said, "truncation": None, "padding": None})
        known = _highest(said) + 1
        tokenizer = LLTokenizer(plain, n_vocab=max(size, known), eos_token=list(eos) or None)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        why = " ".join(str(error).split())
        raise GrammarRefused(f"this model has no tokenizer for grammars: {why}") from error
    text = set(range(min(size, known))) - special - set(eos)
    return Vocabulary(tokenizer, size, words_of(text, size), eos)


def words_of(tokens: Iterable[int], size: int) -> Words:
    """[ceil(size / 32)] with the bits of `tokens` set."""
    bits = np.zeros(-(-size // WORD_BITS) * WORD_BITS, dtype=np.bool_)
    bits[list(tokens)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


def _highest(said: dict[str, object]) -> int:
    """The largest token id of a tokenizer.json."""
    model, added = said["model"], said.get("added_tokens") or []
    assert isinstance(model, dict)
    assert isinstance(added, list)
    vocab = model["vocab"]
    ids = [*(vocab.values() if isinstance(vocab, dict) else range(len(vocab)))]
    return max(int(one) for one in [*ids, *(one["id"] for one in added)])
