"""Which tokens a text was made of: log-probabilities are told beside text alone.

Tokens come before their text, where half a character or half a mark is held back, and beside
some there is none: marks of reasoning, calls, the end. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from api.logprobs import ChatTokenLogprob


@dataclass(slots=True)
class Untold:
    """Tokens that came, and were not told of yet."""

    tokens: list[ChatTokenLogprob] = field(default_factory=list)

    def of(self, text: str) -> Sequence[ChatTokenLogprob]:
        """Those that the text is made of; what came before them is told of no more."""
        near = self._near(text.encode())
        later = self.tokens[len(near) :]
        spelt = [bytes(one.bytes) for one in near]
        begins = [0, *accumulate(map(len, spelt))]
        place = _found(b"".join(spelt), text.encode(), begins)
        end = place + len(text.encode())
        tokens = list(zip(near, begins, begins[1:], strict=False))
        self.tokens = [one for one, begin, _ in tokens if begin >= end] + later
        return [one for one, begin, over in tokens if begin < end and over > place]

    def _near(self, text: bytes) -> list[ChatTokenLogprob]:
        """Those that it may be made of: mostly the first, and more may be held back behind."""
        end = 0
        for number, one in enumerate(self.tokens, 1):
            begin, spelt = end, bytes(one.bytes)
            end += len(spelt)
            if text[begin:end] != spelt[: len(text) - begin]:
                break
            if end >= len(text):
                return self.tokens[:number]
        return self.tokens


def _found(spelt: bytes, text: bytes, begins: Sequence[int]) -> int:
    """Where the text begins, as a token does if it may be: white space may have been dropped.

    At the very beginning where it is nowhere: its letters are others than its tokens'.
    """
    at = next((one for one in begins if spelt.startswith(text, one)), None)
    return max(spelt.find(text), 0) if at is None else at
