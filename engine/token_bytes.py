"""The bytes and the text of single tokens, even where a token is part of a character.

Byte-level tokenizers (GPT-2's) spell each byte as one printable character; tokenizers like
sentencepiece write a space as "▁" and have tokens such as `<0xE2>` for bytes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

SPACE = "▁"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@cache
def byte_characters() -> Mapping[str, int]:
    """GPT-2's table: printable bytes are themselves, the others characters after U+00FF."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(0x100 + n): byte for n, byte in enumerate(others)}
    return {**{chr(byte): byte for byte in printable}, **shifted}


@dataclass(slots=True)
class TokenBytes:
    """The bytes of each token, from `spell`; cached, because answers repeat tokens."""

    spell: Callable[[int], bytes]
    _known: dict[int, bytes] = field(default_factory=dict)

    def bytes_of(self, token: int) -> bytes:
        """The token's bytes; concatenated, the bytes of all tokens are the text."""
        if (known := self._known.get(token)) is None:
            known = self._known[token] = self.spell(token)
        return known

    def text_of(self, token: int) -> str:
        """The token's text; bytes that do not form a character become U+FFFD."""
        return self.bytes_of(token).decode(errors="replace")


def token_bytes_of(fast: Any | None, decode: Callable[[int], str]) -> TokenBytes:  # noqa: ANN401
    """Made from a tokenizer's Rust part; without one, `decode` gives a single token's text."""
    if fast is None:
        return TokenBytes(lambda token: decode(token).encode(errors="replace"))
    kinds = _kinds(part_of(fast.decoder))
    added = {token: says.content for token, says in fast.get_added_tokens_decoder().items()}

    def spell(token: int) -> bytes:
        if token in added:
            said = str(added[token])  # Gemma has runs of "▁" among these
            return (said if "ByteLevel" in kinds else said.replace(SPACE, " ")).encode()
        word = fast.id_to_token(token)
        if word is None:
            return b""
        if "ByteLevel" in kinds:
            return _of_characters(word)
        if "ByteFallback" in kinds and (byte := BYTE.fullmatch(word)):
            return bytes.fromhex(byte[1])
        if SPACE in word:
            return str(word).replace(SPACE, " ").encode()
        return decode(token).encode(errors="replace")

    return TokenBytes(spell)


def is_byte_level(fast: Any | None) -> bool:  # noqa: ANN401
    """Whether a text's bytes are exactly the concatenated bytes of its tokens."""
    decoder = None if fast is None else part_of(fast.decoder)
    return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"


def part_of(part: Any | None) -> Any:  # noqa: ANN401
    """One part of a tokenizer, as in `tokenizer.json`; None if it has no such part.

    Serializing the whole tokenizer takes up to a second, in which no other thread runs.
    """
    return None if part is None else msgspec.json.decode(part.__getstate__())


def _of_characters(word: str) -> bytes:
    """The bytes of a byte-level word; one with a character outside the table is taken as is."""
    known = byte_characters()
    if any(character not in known for character in word):
        return word.encode()
    return bytes(known[character] for character in word)


def _kinds(decoder: Any) -> set[str]:  # noqa: ANN401  JSON
    """The kinds of decoders, including those within a sequence."""
    if not isinstance(decoder, dict):
        return set()
    inner = [_kinds(one) for one in decoder.get("decoders", ())]
    return {str(decoder.get("type")), *(kind for kinds in inner for kind in kinds)}
