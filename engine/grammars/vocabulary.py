"""A checkpoint's tokenizer as llguidance reads it, and which tokens are text at all."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.errors import GrammarRefused
from engine.spelling import vocabulary_of

TOKENIZER = "tokenizer.json"
WORD_BITS = 32

Words = NDArray[np.int32]
"""A set of tokens: token t is bit t % 32 of word t // 32."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`size` tokens have a logit; `text` are those a grammar may write, and so no special one.

    Of these, `special` are those that it may name, but for ends. `tokenizer` may know more
    tokens than have a logit, or fewer.
    """

    tokenizer: LLTokenizer
    size: int
    text: Words
    eos: tuple[int, ...]
    special: Mapping[str, int] = field(default_factory=dict)

    def words(self, tokens: Iterable[int]) -> Words:
        """The set of these; what has no logit is left out."""
        return words_of((token for token in tokens if token < self.size), self.size)


def load_vocabulary(folder: Path, size: int, eos: tuple[int, ...]) -> Vocabulary:
    """Read `folder`'s tokenizer.json; raises GrammarRefused, which says why not."""
    try:
        fast = _read(folder / TOKENIZER)
        known = max(fast.get_vocab().values()) + 1
        spelling = _Spelling(fast, max(size, known), eos)
        tokenizer = LLTokenizer(TokenizerWrapper(spelling), eos_token=list(eos) or None)
    except (OSError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise GrammarRefused(f"this model has no tokenizer for grammars: {why}") from error
    text = set(range(min(size, known))).difference(spelling.special_token_ids, eos)
    special = spelling.special(size, eos)
    return Vocabulary(tokenizer, size, words_of(text, size), eos, special)


class _Spelling:
    """Each token's bytes, as llguidance asks for them.

    Where it reads a `tokenizer.json` itself, it holds every added token like `<tool_call>` for
    special, which no text has: a model that has one for its calls could not write them.
    """

    bos_token_id = None

    def __init__(self, fast: Tokenizer, size: int, eos: tuple[int, ...]) -> None:
        def decode(token: int) -> str:
            return str(fast.decode([token], skip_special_tokens=False))

        self._fast = fast
        self.tokens = list(map(vocabulary_of(fast, decode).spell, range(size)))
        added = fast.get_added_tokens_decoder().items()
        self.special_token_ids = [token for token, one in added if one.special]
        self.eos_token_id = eos[0] if eos else self._nobodys()

    def special(self, size: int, ends: Iterable[int]) -> Mapping[str, int]:
        """By their texts, those that have a logit and end nothing."""
        added = self._fast.get_added_tokens_decoder().items()
        known = set(range(size)).difference(ends)
        return {one.content: token for token, one in added if one.special and token in known}

    def _nobodys(self) -> int:
        """There has to be an end: one more that no model knows."""
        self.tokens.append(b"</s>")
        self.special_token_ids.append(len(self.tokens) - 1)
        return len(self.tokens) - 1

    def __call__(self, text: bytes) -> list[int]:
        """How the model writes what is left of an answer, where that is only one text."""
        return list(self._fast.encode(text.decode(), add_special_tokens=False).ids)


def _read(file: Path) -> Tokenizer:
    """Raises OSError, and ValueError for what is no tokenizer."""
    said = file.read_bytes()
    try:
        fast = Tokenizer.from_buffer(said)
    except Exception as error:  # the library raises nothing more special
        raise ValueError(str(error)) from error
    fast.no_truncation()
    fast.no_padding()
    return fast


def words_of(tokens: Iterable[int], size: int) -> Words:
    """[ceil(size / 32)] with the bits of `tokens` set."""
    bits = np.zeros(-(-size // WORD_BITS) * WORD_BITS, dtype=np.bool_)
    bits[list(tokens)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)
