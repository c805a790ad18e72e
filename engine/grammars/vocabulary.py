"""A checkpoint's tokenizer for llguidance, and the sets of its text and special tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.errors import GrammarRefused
from engine.token_bytes import token_bytes_of

TOKENIZER = "tokenizer.json"
WORD_BITS = 32

TokenSet = NDArray[np.int32]
"""A set of tokens: token t is bit t % 32 of word t // 32."""


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """A model's tokens, as grammars need them.

    `size` tokens have a logit; `tokenizer` may have more, or fewer. `text` are the tokens that
    any grammar may use: no special tokens, no end tokens. `special` maps the texts of special
    tokens, which a grammar may use only by name, to their ids.
    """

    tokenizer: LLTokenizer
    size: int
    text: TokenSet
    eos: tuple[int, ...]
    special: Mapping[str, int] = field(default_factory=dict)

    def token_set(self, tokens: Iterable[int]) -> TokenSet:
        """The set of `tokens`; a token without a logit is left out."""
        return token_set_of((token for token in tokens if token < self.size), self.size)


def load_vocabulary(folder: Path, size: int, eos: tuple[int, ...]) -> GrammarVocabulary:
    """Read `folder`'s tokenizer.json; raises GrammarRefused with the reason."""
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
    return GrammarVocabulary(tokenizer, size, token_set_of(text, size), eos, special)


class _Spelling:
    """Each token's bytes, in the form that llguidance's TokenizerWrapper reads.

    If llguidance reads a `tokenizer.json` itself, it treats every added token, such as
    `<tool_call>`, as special: grammars could then not write a model's tool calls.
    """

    bos_token_id = None

    def __init__(self, fast: Tokenizer, size: int, eos: tuple[int, ...]) -> None:
        def decode(token: int) -> str:
            return str(fast.decode([token], skip_special_tokens=False))

        self._fast = fast
        self.tokens = list(map(token_bytes_of(fast, decode).spell, range(size)))
        added = fast.get_added_tokens_decoder().items()
        self.special_token_ids = [token for token, one in added if one.special]
        self.eos_token_id = eos[0] if eos else self._add_end()

    def special(self, size: int, ends: Iterable[int]) -> Mapping[str, int]:
        """Special tokens by text: those that have a logit and are not end tokens."""
        added = self._fast.get_added_tokens_decoder().items()
        known = set(range(size)).difference(ends)
        return {one.content: token for token, one in added if one.special and token in known}

    def _add_end(self) -> int:
        """llguidance requires an end token: add one that the model does not have."""
        self.tokens.append(b"</s>")
        self.special_token_ids.append(len(self.tokens) - 1)
        return len(self.tokens) - 1

    def __call__(self, text: bytes) -> list[int]:
        """Tokenize text that the grammar forces, if there is only one way to continue."""
        return list(self._fast.encode(text.decode(), add_special_tokens=False).ids)


def _read(file: Path) -> Tokenizer:
    """Read a tokenizer; raises OSError, or ValueError if it is invalid."""
    said = file.read_bytes()
    try:
        fast = Tokenizer.from_buffer(said)
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(str(error)) from error
    fast.no_truncation()
    fast.no_padding()
    return fast


def token_set_of(tokens: Iterable[int], size: int) -> TokenSet:
    """[ceil(size / 32)] with the bits of `tokens` set."""
    bits = np.zeros(-(-size // WORD_BITS) * WORD_BITS, dtype=np.bool_)
    bits[list(tokens)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)
