"""A conversation's tokens, turn by turn: those of turns that came before are known.

A chat grows at its end, and each request brings all of it again. A tokenizer looks for its
added tokens first, and reads what is between two of them by itself. So a text may be parted
before a mark, as we call those that chat templates put between turns, and its tokens are those
of its parts in a row. A part begins with its mark: what is behind it is no text's beginning,
which some tokenizers begin with a space.
"""

import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from threading import Lock
from typing import Any, Protocol
from unicodedata import category

MOST_PARTS = 10_000
ROOM = 64 << 20  # bytes of texts and tokens; a model's
ENTRY = 200  # bytes of what keeps one of them
STRETCH = 1 << 16  # characters; no other thread runs while one is searched
WORDLIKE = ("Pc", "So")  # as ‿ and Ⓐ are
Parts = Callable[[str], Sequence[str]]


class Added(Protocol):
    """What tokenizers say of an added token."""

    content: str
    single_word: bool
    lstrip: bool
    normalized: bool


def parter(fast: Any | None, written: str) -> Parts | None:  # noqa: ANN401
    """Parts a text before each mark: added tokens that are in `written`, by a chat template.

    None where there are none that can be told from all that may be around them.
    """
    if fast is None or fast.encode_special_tokens:
        return None
    added: Collection[Added] = fast.get_added_tokens_decoder().values()
    used = [one for one in added if one.content in written]
    marks = [one.content for one in used if _parts(one, added)]
    if not marks:
        return None
    longest, *_ = marks = sorted(marks, key=len, reverse=True)
    found = re.compile("|".join(map(re.escape, marks)))

    def parts(text: str) -> Sequence[str]:
        """None where it has too many to be a conversation."""
        places = list(islice(places_of(found, text, len(longest)), MOST_PARTS))
        if len(places) == MOST_PARTS:
            return ()
        cuts = [0, *places, len(text)]
        return [text[begin:end] for begin, end in pairwise(cuts) if begin < end]

    return parts


def places_of(marks: "re.Pattern[str]", text: str, longest: int) -> Iterator[int]:
    """Where one begins, of at most `longest` characters: none of them reaches into another."""
    for start in range(0, len(text), STRETCH):
        behind = start + STRETCH
        for one in marks.finditer(text, start, behind + longest - 1):
            if one.start() < behind:
                yield one.start()


def _parts(mark: Added, added: Collection[Added]) -> bool:
    """Whether it is always found where it stands, and nothing before it looks at it.

    Not so if it takes the blanks before it, or only stands for a word; if it begins with what
    is no sign; or if another one may begin before it and reach into it.
    """
    text = mark.content
    if not text or mark.normalized or mark.lstrip or mark.single_word:
        return False
    if not _is_sign(text[0]):
        return False
    others = (one.content for one in added if one is not mark and one.content != text)
    return not _reaches(text, text) and not any(
        text in other or _reaches(other, text) for other in others
    )


def _is_sign(character: str) -> bool:
    """Whether it is no blank, and no part of a word for anyone: tokenizers take more for words
    than Python does, and have tokens that stand for whole words only.
    """
    kind = category(character)
    return kind[0] in "PS" and kind not in WORDLIKE


def _reaches(one: str, other: str) -> bool:
    """Whether an end of one is a beginning of the other, neither of them whole."""
    most = min(len(one), len(other))
    return any(one.endswith(other[:size]) for size in range(1, most))


@dataclass(slots=True)
class Turns:
    """What parts of texts were encoded to, those that were used last; for many threads."""

    parts: Parts
    room: int = ROOM
    _known: "OrderedDict[str, array[int]]" = field(default_factory=OrderedDict)
    _taken: int = 0
    _lock: Any = field(default_factory=Lock, repr=False)

    def tokens(
        self, text: str, encode: Callable[[str], Sequence[int]]
    ) -> Iterator[Sequence[int]]:
        """Part by part; `encode` is asked for those that are not known, or for the whole."""
        if not (parts := self.parts(text)):
            yield encode(text)
        for part in parts:
            if (tokens := self._find(part)) is None:
                tokens = array("i", encode(part))
                self._keep(part, tokens)
            yield tokens

    def _find(self, part: str) -> "array[int] | None":
        with self._lock:
            if part in self._known:
                self._known.move_to_end(part)
            return self._known.get(part)

    def _keep(self, part: str, tokens: "array[int]") -> None:
        size = _size(part, tokens)
        if size > self.room // 2:
            return
        with self._lock:
            if part not in self._known:
                self._known[part] = tokens
                self._taken += size
            while self._taken > self.room:
                self._taken -= _size(*self._known.popitem(last=False))


def _size(part: str, tokens: "array[int]") -> int:
    """In bytes."""
    return sys.getsizeof(part) + sys.getsizeof(tokens) + ENTRY
