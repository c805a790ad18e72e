"""Texts to tokens by merges of bytes, several times quicker than a tokenizer's own library.

Of tokenizers that are nothing else: Llama 3's, Qwen's, gpt-oss's, DeepSeek's and their like.
tiktoken knows a token by its bytes and merges whichever two neighbours are the token of the
lowest rank; a `tokenizer.json` lists the pairs that may merge. Within a longer word the
letters of a token are merged as they are by themselves, in the same order, so each token has
one last merge, whatever stands around it (`_merge`). With tokens ranked by their last merges
both libraries take the same steps; a token that its own letters never come to must not be
known to tiktoken at all, unless more than two are left of it, as then no two neighbours can
be mistaken for it.

What is not known to be the same is left to the tokenizer: other kinds, other ways to cut a text
into words, and letters that not every library may know (`byte_words`).
"""

import re
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, takewhile
from typing import Any
from unicodedata import is_normalized

import tiktoken

from api.text.byte_words import is_known, pattern_of
from engine.token_bytes import byte_characters, part_of

MOST_ADDED, LONGEST_ADDED = 4096, 64  # tokens; characters, that their pattern is as deep as
LONGEST = 1 << 18  # characters: no other thread runs while added tokens are looked for
OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
NFC = {"type": "NFC"}
NORMALIZERS = (None, {"type": "Sequence", "normalizers": []}, NFC)
LETTERS = byte_characters()
Ranks = dict[bytes, int]
Parter = Callable[[str], list[str]]
"""Of a text its parts: every second one is an added token."""


@dataclass(frozen=True, slots=True)
class BytePairs:
    """One tokenizer's, for many threads."""

    core: tiktoken.Encoding
    tokens: list[int]  # by rank
    added: Mapping[str, int]
    parts: Parter
    normalizes: bool  # to NFC
    before: tuple[int, ...]  # special tokens that are put around a text
    behind: tuple[int, ...]

    def encode(self, text: str, *, special_tokens: bool) -> tuple[int, ...] | None:
        """Its tokens, with those around a text if asked; None: ask the tokenizer."""
        if len(text) > LONGEST or not is_known(text, normalized=self.normalizes):
            return None
        found, tokens = list[int](), self.tokens
        for place, part in enumerate(self.parts(text)):
            if place % 2:
                found.append(self.added[part])
            elif part:
                found += [tokens[rank] for rank in self.core.encode_ordinary(part)]
        return (*self.before, *found, *self.behind) if special_tokens else tuple(found)


def byte_pairs(fast: Any) -> BytePairs | None:  # noqa: ANN401
    """Of a tokenizer's Rust part; None if it is more than merges of bytes, or others."""
    pattern = pattern_of(part_of(fast.pre_tokenizer))
    around = _around(part_of(fast.post_processor))
    decoder = fast.get_added_tokens_decoder()
    if pattern is None or around is None or not _is_plain(fast, decoder.values()):
        return None
    model = part_of(fast.model)
    if model["type"] != "BPE" or any(model.get(one) for one in OPTIONS):
        return None
    added = {one.content: token for token, one in decoder.items()}
    ranks = _ranks(model, {content.encode() for content in added})
    if ranks is None:
        return None
    ids = {_bytes(word): token for word, token in model["vocab"].items()}
    core = tiktoken.Encoding("", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    tokens = [ids[one] for one in sorted(ranks, key=ranks.__getitem__)]
    parts = _parter(decoder.values())
    return BytePairs(core, tokens, added, parts, part_of(fast.normalizer) == NFC, *around)


def _is_plain(fast: Any, added: Collection[Any]) -> bool:  # noqa: ANN401
    """Whether nothing is done to a text but to cut out added tokens, wherever they stand, and
    what the model does.
    """
    if part_of(fast.normalizer) not in NORMALIZERS or fast.truncation or fast.padding:
        return False
    looks = "single_word", "lstrip", "rstrip"
    return (
        not fast.encode_special_tokens
        and len(added) <= MOST_ADDED
        and all(
            0 < len(one.content) <= LONGEST_ADDED
            and is_normalized("NFC", one.content)
            and not any(getattr(one, look) for look in looks)
            for one in added
        )
    )


def _around(said: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:  # noqa: ANN401
    """The tokens put before a text and behind it; None if that is not all that is done."""
    every = said["processors"] if said and said["type"] == "Sequence" else [said] * bool(said)
    templates = [one for one in every if one["type"] != "ByteLevel"]  # that one is of places
    if not templates:
        return (), ()
    if len(templates) > 1 or templates[0]["type"] != "TemplateProcessing":
        return None
    known, single = templates[0]["special_tokens"], templates[0]["single"]
    texts = [place for place, one in enumerate(single) if "Sequence" in one]
    if len(texts) != 1:
        return None
    ids = [known[one["SpecialToken"]["id"]]["ids"] for one in single if "SpecialToken" in one]
    return tuple(chain(*ids[: texts[0]])), tuple(chain(*ids[texts[0] :]))


def _parter(added: Collection[Any]) -> Parter:
    """Cuts a text around added tokens: those to be found in a normalized text come second."""
    first, second = (
        _cutter([one.content for one in added if one.normalized is late])
        for late in (False, True)
    )
    if second is None:
        return first or (lambda text: [text])
    if first is None:
        return second

    def both(text: str) -> list[str]:
        found = list[str]()
        for place, part in enumerate(first(text)):
            found += [part] if place % 2 else second(part)
        return found

    return both


def _cutter(words: list[str]) -> Parter | None:
    """Where several begin at one place, the longest is meant; None: there are none."""
    return re.compile(f"({_either(sorted(words))})").split if words else None


def _either(words: list[str]) -> str:
    """A pattern of sorted words that looks at each letter once, the longest word first."""
    if len(words) == 1:
        return re.escape(words[0])
    letters = zip(words[0], words[-1], strict=False)  # between them all begin alike
    same = len([*takewhile(lambda two: two[0] == two[1], letters)])
    rests = [word[same:] for word in words]
    groups = [[*rest] for _, rest in groupby(filter(None, rests), lambda rest: rest[0])]
    ends = "?" * (not rests[0])  # one word is the beginning of the others
    return f"{re.escape(words[0][:same])}(?:{'|'.join(map(_either, groups))}){ends}"


def _ranks(model: Mapping[str, Any], added: Set[bytes]) -> Ranks | None:
    """Of tokens that merges come to, by bytes; None where tiktoken would come to others."""
    words = {_bytes(word): word for word in model["vocab"]}
    listed = {(left, right): place for place, (left, right) in enumerate(model["merges"])}
    if any(bytes([byte]) not in words for byte in LETTERS.values()):
        return None
    last = dict[bytes, int]()
    for found, word in words.items():
        if not found or found in added:
            continue  # no text comes to it, or those that do are cut there
        left, place = _merge(word, listed)
        if left == 1:
            last[found] = place
        elif model["ignore_merges"]:
            if left == 2:
                return None
            last[found] = len(listed)
    return {one: rank for rank, one in enumerate(sorted(last, key=last.__getitem__))}


def _merge(word: str, listed: Mapping[tuple[str, str], int]) -> tuple[int, int]:
    """How many tokens a word by itself comes to, and its last merge; -1: it had none."""
    parts, last, none = [*word], -1, len(listed)
    places = [listed.get(pair, none) for pair in pairwise(parts)]
    while places and (least := min(places)) < none:
        at, last = places.index(least), least
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del places[at]
        for left in range(max(at - 1, 0), min(at + 1, len(places))):
            places[left] = listed.get((parts[left], parts[left + 1]), none)
    return len(parts), last


def _bytes(word: str) -> bytes:
    """What a word of the vocabulary stands for; nothing, if it has another letter."""
    try:
        return bytes(map(LETTERS.__getitem__, word))
    except KeyError:
        return b""
