"""Tokens to text as they come: pieces that add up to what decoding them all would give.

A token's text may depend on its neighbours and may be half a character, so a window of the
last tokens is decoded anew each time, and what is new in its text is said.

    tokens   … | a  b  c  d  e |          the window; its text's first part has been said
    text     …   "wird schön er\ufffd"    the rest is said, but for what may be half a character

The window starts at a border between characters, and is cut now and then, so that a token
costs the same however many came before it.

Where a token's bytes never depend on its neighbours, one that is whole characters by itself,
behind a border, needs no window: its text is looked up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

BROKEN = "\ufffd"  # what decoders put in the place of bytes that are no character (yet)
HALF = 3  # of them at most stand for half a character
CONTEXT = 8  # tokens; more than any character has bytes
MOST_KNOWN = 1 << 19  # more than any vocabulary has; ids of nobody's are not kept for ever
LONGEST = 4 * CONTEXT  # where no border comes: these bytes will never be text


class Alone(dict[int, str | None]):
    """What tokens say alone, found out when it is first asked for."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], visible: Callable[[int], bool]
    ) -> None:
        super().__init__()
        self._decode, self._visible = decode, visible

    def __missing__(self, token: int) -> str | None:
        text = self._decode([token]) if self._visible(token) else ""
        if len(self) < MOST_KNOWN:
            self[token] = None if BROKEN in text else text
        return None if BROKEN in text else text


@dataclass(slots=True)
class Detokenizer:
    """The text of one answer; `visible` says which tokens have any.

    `alone` has what a token says wherever it stands, or None for half a character; there is
    no `alone` where that depends on the neighbours.
    """

    decode: Callable[[Sequence[int]], str]
    visible: Callable[[int], bool]
    alone: Mapping[int, str | None] | None = None
    _window: list[int] = field(default_factory=list)
    _said: int = 0  # characters of the window's text
    _border: int = 0  # the last place in the window where a character began

    def fresh(self) -> "Detokenizer":
        """One more like this one, that has seen nothing."""
        return Detokenizer(self.decode, self.visible, self.alone)

    def behind(self, tokens: Sequence[int]) -> "Detokenizer":
        """Itself, for what goes on with a text that ends so, where neighbours matter: words of
        some tokenizers begin with a blank only if they are not a text's first.
        """
        last = [token for token in tokens[-CONTEXT:] if self.visible(token)]
        while self.alone is None and last and not self._window:
            text = self.decode(last)
            if BROKEN not in text:
                self._window, self._said, self._border = last, len(text), len(last)
            last = last[1:]
        return self

    def add(self, token: int) -> str:
        """The text that is certain now and was not before."""
        known = None if self.alone is None or self._window else self.alone[token]
        if known is not None:
            return known
        if not self.visible(token):
            return ""
        self._window.append(token)
        text = self.decode(self._window)
        piece = self._say(text, len(text) - self._held(text))
        if self.alone is not None and not text.endswith(BROKEN):
            self._window, self._said = [], 0
            return piece
        if len(self._window) > CONTEXT:
            self._cut(text)
        if not text.endswith(BROKEN):
            self._border = len(self._window)
        return piece

    def finish(self) -> str:
        """What was held back: no more tokens come."""
        if not self._window:
            return ""
        text = self.decode(self._window)
        return self._say(text, len(text))

    def _held(self, text: str) -> int:
        """How much of the end may turn into something else.

        One half character spoils all bytes before it with some decoders, so each sign of one
        counts, until there are so many that no character can be meant.
        """
        broken = len(text) - len(text.rstrip(BROKEN))
        return broken if len(self._window) <= LONGEST else min(broken, HALF)

    def _say(self, text: str, until: int) -> str:
        start, self._said = self._said, max(self._said, until)
        return text[start:until]

    def _cut(self, text: str) -> None:
        """Forget tokens before the last border, unless what follows is no text by itself."""
        rest = self._window[self._border :]
        if self._border and (tail := self.decode(rest)):
            self._keep(rest, text, tail)
        elif len(self._window) > LONGEST:
            rest = self._window[-CONTEXT * 2 :]
            self._keep(rest, text, self.decode(rest))

    def _keep(self, rest: list[int], text: str, tail: str) -> None:
        self._said = max(0, len(tail) - (len(text) - self._said))
        self._window, self._border = rest, 0
