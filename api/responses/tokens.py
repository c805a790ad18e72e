"""Finds the tokens that a text is made of: responses have log-probabilities of these only.

Tokens may come before their text, which is held back while a character or a marker is
incomplete. Some have no text: marks of reasoning, calls, the end of the answer. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from api.logprobs import ChatTokenLogprob


@dataclass(slots=True)
class PendingTokens:
    """Tokens of an answer whose text has not been sent yet.

    `rest` is what has not been sent of the last token that was taken: a text may end within it.
    """

    tokens: list[ChatTokenLogprob] = field(default_factory=list)
    rest: bytes = b""

    def clear(self) -> None:
        """Drop them: they have become something else than text."""
        self.tokens, self.rest = [], b""

    def take_for(self, text: str, behind: int = 0) -> Sequence[ChatTokenLogprob]:
        """Remove and return the tokens that this text is made of; drop those before them.

        At least `behind` bytes of calls come before it.
        """
        said = text.encode()
        near = self.tokens if behind else self._candidates(said)
        later = self.tokens[len(near) :]
        spelt = [self.rest, *(bytes(one.bytes) for one in near)]
        begins = [0, *accumulate(map(len, spelt))]
        whole = b"".join(spelt)
        place = _start_of(whole, said, begins, behind)
        end = place + len(said)
        tokens = list(zip(near, begins[1:], begins[2:], strict=False))
        self.tokens = [one for one, begin, _ in tokens if begin >= end] + later
        self.rest = whole[end : next((one for one in begins if one >= end), end)]
        return [one for one, begin, over in tokens if begin < end and over > place]

    def _candidates(self, text: bytes) -> list[ChatTokenLogprob]:
        """The first tokens that spell the text; all of them if the first ones do not."""
        end = len(self.rest)
        if text[:end] != self.rest[: len(text)]:
            return self.tokens
        for number, one in enumerate(self.tokens):
            if end >= len(text):
                return self.tokens[:number]
            begin, spelt = end, bytes(one.bytes)
            end += len(spelt)
            if text[begin:end] != spelt[: len(text) - begin]:
                break
        return self.tokens


def _start_of(spelt: bytes, text: bytes, begins: Sequence[int], behind: int) -> int:
    """The offset of the text, at a token's start if possible: white space may have been
    dropped. `begins[1]` is the first token's, behind the rest of the one before.

    If the text occurs nowhere, as its letters differ from those of its tokens, it is that.
    """
    known = (one for one in begins if one >= behind and spelt.startswith(text, one))
    at = next(known, None)
    if at is None:
        at = spelt.find(text, behind)
    return max(begins[1], behind) if at < 0 else at
