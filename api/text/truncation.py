"""Truncates long texts to their first or last tokens without encoding them at once.

A tokenizer takes half a kilobyte of memory for each character that it encodes at once. So a
text is encoded in overlapping stretches, from its beginning, since the place where a token
begins may depend on all text before it. A stretch begins at a place from which, after some
first tokens, it gives the same tokens as the end of the stretch before. Then these are the
tokens of the whole text too: with merges, and if texts are first split into words, each two
neighbouring tokens show whether a sequence of tokens is that of its text, and every two
neighbours were seen together in one stretch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

STRETCH, OVERLAP = 1 << 16, 1 << 11  # characters
MAX_TRIES = 16  # places to try for a new stretch, before a text is given up
LEAD = 4  # tokens at the start of a stretch that may differ from those of the whole
MARGIN = 64  # tokens; those before them do not depend on the text after them
FEW = 4
Offsets = Sequence[tuple[int, int]]
PAIRWISE_MODELS = ("BPE", "WordPiece", "WordLevel")


class NoCutPoint(ValueError):
    """The text has no place where cutting it leaves the tokens unchanged."""


@dataclass(frozen=True, slots=True)
class CutPoint:
    """An offset in characters at which to cut a text: `tokens_before` of the whole text's
    tokens come before it, and the first `lead` tokens after it are not those of the whole text.
    """

    offset: int
    tokens_before: int
    lead: int


@dataclass(frozen=True, slots=True)
class TextTruncator:
    """Truncates texts for one tokenizer; `fast` is its Rust part."""

    fast: Any
    stretch: int = STRETCH
    overlap: int = OVERLAP

    def last(self, text: str, most: int) -> str:
        """An end of the text with the same last `most` tokens, special tokens not counted.

        Raises NoCutPoint.
        """
        cuts = [CutPoint(0, 0, 0), *self._cuts(text)]
        end = cuts[-1]
        whole = end.tokens_before + len(self._encode(text[end.offset :]).ids) - end.lead
        place = next((c.offset for c in reversed(cuts) if whole - c.tokens_before >= most), 0)
        return text[place:]

    def first(self, text: str, most: int) -> str:
        """A beginning of the text with the same first `most` tokens; raises NoCutPoint."""
        for cut in self._cuts(text):
            if cut.tokens_before >= most + MARGIN:
                return text[: cut.offset]
        return text

    def _cuts(self, text: str) -> Iterator[CutPoint]:
        """The points where all stretches but the first begin; raises NoCutPoint."""
        last, size = CutPoint(0, 0, 0), self.stretch + self.overlap
        here = self._encode(text[:size])
        while last.offset + size < len(text):
            cut = self._cut(text[last.offset : last.offset + size], here)
            place, index = last.offset + cut.offset, cut.tokens_before
            following = self._encode(text[place : place + size])
            if following.ids[cut.lead : cut.lead + 1] != here.ids[index : index + 1]:
                raise NoCutPoint
            here, last = (
                following,
                CutPoint(place, last.tokens_before - last.lead + index, cut.lead),
            )
            yield last

    def _cut(self, part: str, here: Any) -> CutPoint:  # noqa: ANN401  of tokenizers
        """Where the next stretch begins in this one; `tokens_before` is a token index here."""
        tried, ids = 0, here.ids
        for index, place in self._places(part, here.offsets):
            behind = self._encode(part[place:]).ids
            lead = len(behind) - (len(ids) - index)
            if 0 <= lead <= LEAD and behind[lead:] == ids[index:]:
                return CutPoint(place, index, lead)
            if (tried := tried + 1) == MAX_TRIES:
                break
        raise NoCutPoint

    def _places(self, part: str, offsets: Offsets) -> Iterator[tuple[int, int]]:
        """Indexes of tokens in a stretch, and offsets from which they may result; likely ones
        first.

        Offsets within a word are only tried if the tokenizer's model depends on neighbours
        alone.
        """
        neighbourly = type(self.fast.model).__name__ in PAIRWISE_MODELS
        clean = range(LEAD, len(offsets)) if neighbourly or self.fast.pre_tokenizer else ()
        found = [index for index in clean if self._may_be_cut(offsets, index)]
        words = [index for index in found if _at_whitespace(part, offsets[index][0])]
        for index in (*words[:FEW], *(found if neighbourly else words[FEW:])):
            before, start = offsets[index - 1], offsets[index][0]
            yield index, start
            if before[1] < start:
                yield index, before[1]
            if part[start] == " ":
                yield index, start + 1
            elif neighbourly:
                yield index, before[0]

    def _may_be_cut(self, offsets: Offsets, index: int) -> bool:
        """Whether the token begins in the overlap's first half, not within a character."""
        start, last = offsets[index][0], self.stretch + self.overlap // 2
        return self.stretch <= start < last and offsets[index - 1][1] <= start

    def _encode(self, text: str) -> Any:  # noqa: ANN401  of tokenizers
        (encoding,) = self.fast.encode_batch([text], add_special_tokens=False)
        return encoding


def _at_whitespace(text: str, place: int) -> bool:
    return text[place].isspace() or text[place - 1].isspace()
