"""Byte-level BPE by tiktoken, several times faster than a tokenizer's own library.

Only for tokenizers that are pure BPE: those of Llama 3, Qwen, gpt-oss, DeepSeek and similar
models. tiktoken knows a token by its bytes, and always merges the two neighbours that form the
token of the lowest rank; a `tokenizer.json` lists the pairs that may merge instead. Within a
longer word, the letters of a token merge in the same way and order as they do alone, so each
token has one last merge, whatever its context (`_merge`). If tokens are ranked by their last
merges, both libraries take the same steps. A token that merging its own letters never produces
must not be known to tiktoken at all, unless merging leaves more than two parts of it, as then
no two neighbours can be mistaken for the token.

Everything else is left to the tokenizer itself: other kinds of tokenizers, other
pre-tokenization patterns, and characters that the two libraries may classify differently
(`pre_tokenization`).
"""

import re
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, takewhile
from typing import Any
from unicodedata import is_normalized

import tiktoken

from api.text.pre_tokenization import is_cut_alike, pattern_of
from engine.token_bytes import byte_characters, part_of

# tokens; characters, which are also the depth of their pattern
MOST_ADDED, LONGEST_ADDED = 4096, 64
LONGEST = 1 << 18  # characters: the search for added tokens blocks all other threads
OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
NFC = {"type": "NFC"}
NORMALIZERS = (None, {"type": "Sequence", "normalizers": []}, NFC)
LETTERS = byte_characters()
Ranks = dict[bytes, int]
Splitter = Callable[[str], list[str]]
"""Splits a text into parts, of which every second one is an added token."""


@dataclass(frozen=True, slots=True)
class BytePairEncoder:
    """Encodes texts as one tokenizer would; thread-safe."""

    core: tiktoken.Encoding
    tokens: list[int]  # by rank
    added: Mapping[str, int]
    parts: Splitter
    normalizes: bool  # to NFC
    before: tuple[int, ...]  # special tokens that are put before a text
    behind: tuple[int, ...]

    def encode(self, text: str, *, special_tokens: bool) -> tuple[int, ...] | None:
        """The tokens, with `special_tokens` around them; None: the tokenizer has to do it."""
        if len(text) > LONGEST or not is_cut_alike(text, normalized=self.normalizes):
            return None
        found, tokens = list[int](), self.tokens
        for place, part in enumerate(self.parts(text)):
            if place % 2:
                found.append(self.added[part])
            elif part:
                found += [tokens[rank] for rank in self.core.encode_ordinary(part)]
        return (*self.before, *found, *self.behind) if special_tokens else tuple(found)


def byte_pair_encoder(fast: Any) -> BytePairEncoder | None:  # noqa: ANN401
    """The encoder of a tokenizer's Rust part; None if that is not known to be plain BPE."""
    pattern = pattern_of(part_of(fast.pre_tokenizer))
    around = _special_tokens_around(part_of(fast.post_processor))
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
    parts = _added_token_splitter(decoder.values())
    return BytePairEncoder(core, tokens, added, parts, part_of(fast.normalizer) == NFC, *around)


def _is_plain(fast: Any, added: Collection[Any]) -> bool:  # noqa: ANN401
    """Whether a text is only split at added tokens and then merged: no other normalization,
    truncation or padding.
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


def _special_tokens_around(said: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:  # noqa: ANN401
    """The special tokens put before and behind a text; None if more than that is done."""
    every = said["processors"] if said and said["type"] == "Sequence" else [said] * bool(said)
    # that one only affects offsets
    templates = [one for one in every if one["type"] != "ByteLevel"]
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


def _added_token_splitter(added: Collection[Any]) -> Splitter:
    """Splits a text at added tokens, first at those that are matched before normalization."""
    first, second = (
        _splitter([one.content for one in added if one.normalized is late])
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


def _splitter(words: list[str]) -> Splitter | None:
    """Splits at these words, the longest first; None: there are no words."""
    return re.compile(f"({_either(sorted(words))})").split if words else None


def _either(words: list[str]) -> str:
    """A trie-like pattern of sorted words that prefers the longest."""
    if len(words) == 1:
        return re.escape(words[0])
    # all words between these two have the same beginning
    letters = zip(words[0], words[-1], strict=False)
    same = len([*takewhile(lambda two: two[0] == two[1], letters)])
    rests = [word[same:] for word in words]
    groups = [[*rest] for _, rest in groupby(filter(None, rests), lambda rest: rest[0])]
    ends = "?" * (not rests[0])  # one word is the beginning of the others
    return f"{re.escape(words[0][:same])}(?:{'|'.join(map(_either, groups))}){ends}"


def _ranks(model: Mapping[str, Any], added: Set[bytes]) -> Ranks | None:
    """Merge ranks for tiktoken, by bytes; None if tiktoken would produce other tokens."""
    words = {_bytes(word): word for word in model["vocab"]}
    listed = {(left, right): place for place, (left, right) in enumerate(model["merges"])}
    if any(bytes([byte]) not in words for byte in LETTERS.values()):
        return None
    last = dict[bytes, int]()
    for found, word in words.items():
        if not found or found in added:
            continue  # no text produces it, or such text is split there
        left, place = _merge(word, listed)
        if left == 1:
            last[found] = place
        elif model["ignore_merges"]:
            if left == 2:
                return None
            last[found] = len(listed)
    return {one: rank for rank, one in enumerate(sorted(last, key=last.__getitem__))}


def _merge(word: str, listed: Mapping[tuple[str, str], int]) -> tuple[int, int]:
    """The number of tokens left after merging a word, and its last merge or -1."""
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
    """The bytes of a vocabulary word; empty if a character of it stands for no byte."""
    try:
        return bytes(map(LETTERS.__getitem__, word))
    except KeyError:
        return b""
