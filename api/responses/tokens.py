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
    """Tokens of an answer whose text has not been sent yet."""

    tokens: list[ChatTokenLogprob] = field(default_factory=list)

    def take_for(self, text: str) -> Sequence[ChatTokenLogprob]:
        """Remove and return the tokens that this text is made of; drop those before them."""
        near = self._candidates(text.encode())
        later = self.tokens[len(near) :]
        spelt = [bytes(one.bytes) for one in near]
        begins = [0, *accumulate(map(len, spelt))]
        place = _start_of(b"".join(spelt), text.encode(), begins)
        end = place + len(text.encode())
        tokens = list(zip(near, begins, begins[1:], strict=False))
        self.tokens = [one for one, begin, _ in tokens if begin >= end] + later
        return [one for one, begin, over in tokens if begin < end and over > place]

    def _candidates(self, text: bytes) -> list[ChatTokenLogprob]:
        """The first tokens that spell the text; all of them if the first ones do not."""
        end = 0
        for number, one in enumerate(self.tokens, 1):
            begin, spelt = end, bytes(one.bytes)
            end += len(spelt)
            if text[begin:end] != spelt[: len(text) - begin]:
                break
            if end >= len(text):
                return self.tokens[:number]
        return self.tokens


def _start_of(spelt: bytes, text: bytes, begins: Sequence[int]) -> int:
    """The offset of the text, at a token's start if possible: white space may have been
    dropped.

    If the text occurs nowhere, as its letters differ from those of its tokens, it is 0.
    """
    at = next((one for one in begins if spelt.startswith(text, one)), None)
    return max(spelt.find(text), 0) if at is None else at
