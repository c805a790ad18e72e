"""Long texts of which one end is wanted: the rest is left out before it takes memory.

A tokenizer takes half a kilobyte of memory for each character of what it encodes at once. So a
text is read in stretches that overlap, from its beginning: where a token begins may depend on
all that is before it. A stretch begins where it becomes, from some token on, the same tokens as
at the end of the one before. Then these are the tokens of the whole, too: with merges, and
where texts are split into words first, whether tokens in a row are those of their text is seen
at each two neighbours, and each two were seen side by side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

STRETCH, OVERLAP = 1 << 16, 1 << 11  # characters
TRIED = 16  # places to begin anew at, before a text is given up
LEAD = 4  # tokens at the beginning of a stretch that may be others than those of the whole
MARGIN = 64  # tokens: those before them do not change when a text ends behind them
FEW = 4
Offsets = Sequence[tuple[int, int]]
NEIGHBOURLY = ("BPE", "WordPiece", "WordLevel")


class Uncuttable(ValueError):
    """No place was found where it can be cut and nothing changes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in a text; how many tokens of the whole are before it, and how many behind it
    are none of the whole's.
    """

    place: int
    before: int
    lead: int


@dataclass(frozen=True, slots=True)
class Reader:
    """Cuts texts for one tokenizer; `fast` is its Rust part."""

    fast: Any
    stretch: int = STRETCH
    overlap: int = OVERLAP

    def last(self, text: str, most: int) -> str:
        """An end of it with the same last `most` tokens, special ones around it left aside.

        Raises Uncuttable.
        """
        cuts = [Cut(0, 0, 0), *self._cuts(text)]
        end = cuts[-1]
        whole = end.before + len(self._encode(text[end.place :]).ids) - end.lead
        place = next((c.place for c in reversed(cuts) if whole - c.before >= most), 0)
        return text[place:]

    def first(self, text: str, most: int) -> str:
        """A beginning of it with the same first `most` tokens; as above."""
        for cut in self._cuts(text):
            if cut.before >= most + MARGIN:
                return text[: cut.place]
        return text

    def _cuts(self, text: str) -> Iterator[Cut]:
        """Where stretches begin, but for the first; raises Uncuttable."""
        last, size = Cut(0, 0, 0), self.stretch + self.overlap
        here = self._encode(text[:size])
        while last.place + size < len(text):
            cut = self._cut(text[last.place : last.place + size], here)
            place, index = last.place + cut.place, cut.before
            following = self._encode(text[place : place + size])
            if following.ids[cut.lead : cut.lead + 1] != here.ids[index : index + 1]:
                raise Uncuttable
            here, last = following, Cut(place, last.before - last.lead + index, cut.lead)
            yield last

    def _cut(self, part: str, here: Any) -> Cut:  # noqa: ANN401  of tokenizers
        """Where the next stretch begins in this one; `before` is the index of a token here."""
        tried, ids = 0, here.ids
        for index, place in self._places(part, here.offsets):
            behind = self._encode(part[place:]).ids
            lead = len(behind) - (len(ids) - index)
            if 0 <= lead <= LEAD and behind[lead:] == ids[index:]:
                return Cut(place, index, lead)
            if (tried := tried + 1) == TRIED:
                break
        raise Uncuttable

    def _places(self, part: str, offsets: Offsets) -> Iterator[tuple[int, int]]:
        """Tokens of a stretch, and where to begin so that they may come; likely ones first.

        Within a word only where a model of neighbours goes by them alone.
        """
        neighbourly = type(self.fast.model).__name__ in NEIGHBOURLY
        clean = range(LEAD, len(offsets)) if neighbourly or self.fast.pre_tokenizer else ()
        found = [index for index in clean if self._may_be_cut(offsets, index)]
        words = [index for index in found if _at_blank(part, offsets[index][0])]
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
        """It begins in the first half of the overlap, and no character is shared."""
        start, last = offsets[index][0], self.stretch + self.overlap // 2
        return self.stretch <= start < last and offsets[index - 1][1] <= start

    def _encode(self, text: str) -> Any:  # noqa: ANN401  of tokenizers
        (encoding,) = self.fast.encode_batch([text], add_special_tokens=False)
        return encoding


def _at_blank(text: str, place: int) -> bool:
    return text[place].isspace() or text[place - 1].isspace()
