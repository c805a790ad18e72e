"""Incremental detokenization: pieces of text that add up to the text of all tokens.

A token's text may depend on its neighbours and may be an incomplete character, so a window of
the last tokens is decoded anew each time, and the new part of its text is emitted.

    tokens   … | a  b  c  d  e |          the window; the first part of its text was emitted
    text     …   "wird schön er\ufffd"    the rest is emitted, but for the incomplete character

The window starts at a boundary between characters, and is shortened now and then, so that the
cost of a token does not depend on how many came before it.

Where a token's bytes never depend on its neighbours, a token of whole characters after a
boundary needs no window: its text is looked up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

REPLACEMENT = "\ufffd"  # what decoders write for bytes that are no character (yet)
MAX_REPLACEMENTS = 3  # at most this many of them stand for an incomplete character
CONTEXT = 8  # tokens; more than any character has bytes
MAX_TOKEN_TEXTS = 1 << 19  # larger than any vocabulary; bounds the cache if ids are invalid
MAX_WINDOW = 4 * CONTEXT  # where no boundary comes: these bytes will never be text


class TokenTexts(dict[int, str | None]):
    """A cache of single tokens' texts by id; None for an incomplete character."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], visible: Callable[[int], bool]
    ) -> None:
        super().__init__()
        self._decode, self._visible = decode, visible

    def __missing__(self, token: int) -> str | None:
        text = self._decode([token]) if self._visible(token) else ""
        if len(self) < MAX_TOKEN_TEXTS:
            self[token] = None if REPLACEMENT in text else text
        return None if REPLACEMENT in text else text


@dataclass(slots=True)
class Detokenizer:
    """Detokenizes one answer; tokens that are not `visible` have no text.

    `token_texts` has each token's text, or None for an incomplete character. It is None itself
    if a token's text depends on its neighbours.
    """

    decode: Callable[[Sequence[int]], str]
    visible: Callable[[int], bool]
    token_texts: Mapping[int, str | None] | None = None
    _window: list[int] = field(default_factory=list)
    _emitted: int = 0  # characters of the window's text that were emitted
    _border: int = 0  # the last place in the window where a character began

    def fresh(self) -> "Detokenizer":
        """A new detokenizer like this one, which has seen no tokens."""
        return Detokenizer(self.decode, self.visible, self.token_texts)

    def after_prompt(self, tokens: Sequence[int]) -> "Detokenizer":
        """Prepare for an answer that continues these tokens, and return itself. It matters if a
        token's text depends on its neighbours: some tokenizers drop the space before a text's
        first word.
        """
        last = [token for token in tokens[-CONTEXT:] if self.visible(token)]
        while self.token_texts is None and last and not self._window:
            text = self.decode(last)
            if REPLACEMENT not in text:
                self._window, self._emitted, self._border = last, len(text), len(last)
            last = last[1:]
        return self

    def add(self, token: int) -> str:
        """Add a token; returns the text that has become certain."""
        known = None if self.token_texts is None or self._window else self.token_texts[token]
        if known is not None:
            return known
        if not self.visible(token):
            return ""
        self._window.append(token)
        text = self.decode(self._window)
        piece = self._emit(text, len(text) - self._incomplete(text))
        if self.token_texts is not None and not text.endswith(REPLACEMENT):
            self._window, self._emitted = [], 0
            return piece
        if len(self._window) > CONTEXT:
            self._shorten_window(text)
        if not text.endswith(REPLACEMENT):
            self._border = len(self._window)
        return piece

    def finish(self) -> str:
        """Return the text that was held back, as no more tokens come."""
        if not self._window:
            return ""
        text = self.decode(self._window)
        return self._emit(text, len(text))

    def _incomplete(self, text: str) -> int:
        """How many characters at the end may still change, as bytes of a character are missing.

        With some decoders, an incomplete character turns all bytes before it into replacement
        characters. All of these are held back until there are more than any character has
        bytes.
        """
        broken = len(text) - len(text.rstrip(REPLACEMENT))
        return broken if len(self._window) <= MAX_WINDOW else min(broken, MAX_REPLACEMENTS)

    def _emit(self, text: str, until: int) -> str:
        start, self._emitted = self._emitted, max(self._emitted, until)
        return text[start:until]

    def _shorten_window(self, text: str) -> None:
        """Drop tokens before the last boundary, unless the rest alone decodes to no text."""
        rest = self._window[self._border :]
        if self._border and (tail := self.decode(rest)):
            self._restart_window(rest, text, tail)
        elif len(self._window) > MAX_WINDOW:
            rest = self._window[-CONTEXT * 2 :]
            self._restart_window(rest, text, self.decode(rest))

    def _restart_window(self, rest: list[int], text: str, tail: str) -> None:
        self._emitted = max(0, len(tail) - (len(text) - self._emitted))
        self._window, self._border = rest, 0
