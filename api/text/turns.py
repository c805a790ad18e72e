"""A cache of chat turns and their tokens, so that a long chat is not encoded anew each time.

A chat grows at its end, and each request sends all of it again. A tokenizer first looks for its
added tokens, and encodes the text between two of them separately. So a rendered chat can be
split before each mark (an added token that the chat template puts between turns), and its
tokens are those of its parts, joined. A part begins with its mark: some tokenizers put a space
before the first word of a text, but not after a mark.
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
ROOM = 64 << 20  # bytes of texts and tokens, per model
ENTRY = 200  # bytes of the cache's overhead for one entry
STRETCH = 1 << 16  # characters; the search of one stretch blocks all other threads
WORDLIKE = ("Pc", "So")  # such as ‿ and Ⓐ
TurnSplitter = Callable[[str], Sequence[str]]


class AddedToken(Protocol):
    """An added token, as tokenizers describe it."""

    content: str
    single_word: bool
    lstrip: bool
    normalized: bool


def turn_splitter(fast: Any | None, written: str) -> TurnSplitter | None:  # noqa: ANN401
    """Splits a text before each mark: added tokens that `written`, a template's output, has.

    None where no added token is safe to split before.
    """
    if fast is None or fast.encode_special_tokens:
        return None
    added: Collection[AddedToken] = fast.get_added_tokens_decoder().values()
    used = [one for one in added if one.content in written]
    marks = [one.content for one in used if _splits_safely(one, added)]
    if not marks:
        return None
    longest, *_ = marks = sorted(marks, key=len, reverse=True)
    found = re.compile("|".join(map(re.escape, marks)))

    def parts(text: str) -> Sequence[str]:
        """The parts of a text; empty if there are too many of them for a chat."""
        places = list(islice(mark_offsets(found, text, len(longest)), MOST_PARTS))
        if len(places) == MOST_PARTS:
            return ()
        cuts = [0, *places, len(text)]
        return [text[begin:end] for begin, end in pairwise(cuts) if begin < end]

    return parts


def mark_offsets(marks: "re.Pattern[str]", text: str, longest: int) -> Iterator[int]:
    """The offsets of marks of at most `longest` characters; no two of them overlap."""
    for start in range(0, len(text), STRETCH):
        behind = start + STRETCH
        for one in marks.finditer(text, start, behind + longest - 1):
            if one.start() < behind:
                yield one.start()


def _splits_safely(mark: AddedToken, added: Collection[AddedToken]) -> bool:
    """Whether splitting before the mark never changes the tokens on either side.

    It may if the mark swallows spaces before it or matches whole words only, if it does not
    begin with punctuation, or if another added token may overlap it.
    """
    text = mark.content
    if not text or mark.normalized or mark.lstrip or mark.single_word:
        return False
    if not _is_sign(text[0]):
        return False
    others = (one.content for one in added if one is not mark and one.content != text)
    return not _overlaps(text, text) and not any(
        text in other or _overlaps(other, text) for other in others
    )


def _is_sign(character: str) -> bool:
    """Whether it is neither a space nor part of a word to any tokenizer; tokenizers take more
    characters for letters than Python does.
    """
    kind = category(character)
    return kind[0] in "PS" and kind not in WORDLIKE


def _overlaps(one: str, other: str) -> bool:
    """Whether a proper suffix of one is a proper prefix of the other."""
    most = min(len(one), len(other))
    return any(one.endswith(other[:size]) for size in range(1, most))


@dataclass(slots=True)
class TurnCache:
    """An LRU cache from parts of texts to their tokens; thread-safe."""

    split: TurnSplitter
    max_bytes: int = ROOM
    _known: "OrderedDict[str, array[int]]" = field(default_factory=OrderedDict)
    _used_bytes: int = 0
    _lock: Any = field(default_factory=Lock, repr=False)

    def tokens(
        self, text: str, encode: Callable[[str], Sequence[int]]
    ) -> Iterator[Sequence[int]]:
        """The tokens of all parts; `encode` makes those of parts that are not cached."""
        if not (parts := self.split(text)):
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
        if size > self.max_bytes // 2:
            return
        with self._lock:
            if part not in self._known:
                self._known[part] = tokens
                self._used_bytes += size
            while self._used_bytes > self.max_bytes:
                self._used_bytes -= _size(*self._known.popitem(last=False))


def _size(part: str, tokens: "array[int]") -> int:
    """The size of an entry in bytes."""
    return sys.getsizeof(part) + sys.getsizeof(tokens) + ENTRY
