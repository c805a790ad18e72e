"""Texts to tokens by merges of bytes, several times quicker than a tokenizer's own library.

Of tokenizers that are nothing else: GPT-2's, Llama 3's, Qwen's, gpt-oss's and their like.
tiktoken knows a token by its bytes and merges whichever two neighbours are the token of the
lowest rank; a `tokenizer.json` lists the pairs that may merge. Within a longer word the
letters of a token are merged as they are by themselves, in the same order, so each token has
one last merge, whatever stands around it (`_merge`). With tokens ranked by their last merges
both libraries take the same steps; a token that its own letters never come to must not be
known to tiktoken at all, unless more than two are left of it, as then no two neighbours can
be mistaken for it.

What is not known to be the same is left to the tokenizer: other kinds, other patterns, and
characters that two libraries' tables of letters may not agree on.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import tiktoken

LONGEST = 1 << 18  # characters: no other thread runs while added tokens are looked for
BYTES = 256
OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
NORMALIZERS = (None, {"type": "NFC"})  # which leaves texts of the letters below as they are
GPT_2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_3 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + REST
QWEN_2 = LLAMA_3.replace("{1,3}", "")
HIGH, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASES = [rf"[^\r\n\p{{L}}\p{{N}}]?{HIGH}{some}" for some in (f"*{LOW}+", f"+{LOW}*")]
SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + REST
NEMO = "|".join([*CASES, r"\p{N}"]) + SIGNS
GPT_OSS = "|".join([*(f"{one}{SHORT}?" for one in CASES), r"\p{N}{1,3}"]) + SIGNS
PATTERNS = frozenset({LLAMA_3, QWEN_2, NEMO, GPT_OSS})  # each takes every letter of a text
CUTS = (("Isolated", False), ("Removed", True))  # so both of these leave the same words
SURE = "\0-\u017e\u0180-\u024f\u0400-\u045f\u2010-\u2027\u3001-\u3029\u3041-\u3096\u30a1-\u30fa"
SURE += "\u4e00-\u9fa5\uac00-\ud7a3\uff01-\uff5e\U0001f300-\U0001f64f"
_unsure = re.compile(f"[^{SURE}]").search
AROUND = ("TemplateProcessing", "ByteLevel")  # the latter is of places, not of tokens
Ranks = dict[bytes, int]


@dataclass(frozen=True, slots=True)
class BytePairs:
    """One tokenizer's, for many threads. `parts` cuts a text around its added tokens."""

    core: tiktoken.Encoding
    tokens: list[int]  # by rank
    added: Mapping[str, int]
    parts: Callable[[str], list[str]]
    before: tuple[int, ...]  # special tokens that are put around a text
    behind: tuple[int, ...]

    def encode(self, text: str, *, special_tokens: bool) -> tuple[int, ...] | None:
        """Its tokens, with those around a text if asked; None: ask the tokenizer."""
        if len(text) > LONGEST or (not text.isascii() and _unsure(text)):
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
    said = msgspec.json.decode(fast.to_str())
    pattern = _pattern(said["pre_tokenizer"])
    around = _around(said["post_processor"], fast)
    if pattern is None or around is None or said["normalizer"] not in NORMALIZERS:
        return None
    added = {one.content: token for token, one in fast.get_added_tokens_decoder().items()}
    if fast.encode_special_tokens or not all(map(_is_plain, said["added_tokens"])):
        return None
    ranks = _ranks(said["model"], added)
    if ranks is None:
        return None
    ids = {_bytes(word): token for word, token in said["model"]["vocab"].items()}
    core = tiktoken.Encoding("", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    tokens = [ids[one] for one in sorted(ranks, key=ranks.__getitem__)]
    return BytePairs(core, tokens, added, _parter(added), *around)


def _pattern(said: Any) -> str | None:  # noqa: ANN401
    """By which a text is cut into words; None: not one that was tried here."""
    match said:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT_2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split"} as split,
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            known = (split["behavior"], split["invert"]) in CUTS
            pattern = split["pattern"].get("Regex")
            return pattern if known and pattern in PATTERNS else None
    return None


def _around(said: Any, fast: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:  # noqa: ANN401
    """The tokens that are put before a text and behind it; None: who knows."""
    every = said["processors"] if said and said["type"] == "Sequence" else [said] * bool(said)
    if any(one["type"] not in AROUND for one in every):
        return None
    bare, whole = (fast.encode("a", add_special_tokens=add).ids for add in (False, True))
    at = next(at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
    return tuple(whole[:at]), tuple(whole[at + len(bare) :])


def _is_plain(added: Mapping[str, Any]) -> bool:
    """Whether it is found wherever it stands, before anything else is done to a text."""
    looks = "single_word", "lstrip", "rstrip", "normalized"
    return bool(added["content"]) and not any(added[one] for one in looks)


def _parter(added: Mapping[str, int]) -> Callable[[str], list[str]]:
    """Where several begin at one place, the longest is meant."""
    if not added:
        return lambda text: [text]
    longest_first = sorted(added, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})").split


def _ranks(model: Mapping[str, Any], added: Mapping[str, int]) -> Ranks | None:
    """Of tokens that merges come to, by bytes; None where tiktoken would come to others."""
    if model["type"] != "BPE" or any(model.get(one) for one in OPTIONS):
        return None
    words = {_bytes(word): word for word in model["vocab"] if word not in added}
    words.pop(b"", None)  # what no text comes to
    known = {*words.values()}
    merges = enumerate(map(_pair, model["merges"]))  # none twice, as the library wrote it
    listed = {pair: place for place, pair in merges}
    if not known.issuperset(LETTERS.values()) or not known.issuperset(map("".join, listed)):
        return None
    last = dict[bytes, int]()
    for found, word in words.items():
        left, place = _merge(word, listed)
        if left == 1:
            last[found] = place
        elif model.get("ignore_merges"):
            if left == 2:
                return None
            last[found] = len(listed)
    return {one: rank for rank, one in enumerate(sorted(last, key=last.__getitem__))}


def _pair(listed: Any) -> tuple[str, str]:  # noqa: ANN401
    left, right = listed.split(" ") if isinstance(listed, str) else listed
    return left, right


def _merge(word: str, listed: Mapping[tuple[str, str], int]) -> tuple[int, int]:
    """How many tokens a word by itself comes to, and its last merge; -1: it had none."""
    parts, last, none = [*word], -1, len(listed)
    while len(parts) > 1:
        places = [listed.get(pair, none) for pair in pairwise(parts)]
        if (least := min(places)) == none:
            break
        at, last = places.index(least), least
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return len(parts), last


def _letters() -> Iterator[tuple[int, str]]:
    """Byte by byte the letter that stands for it, as GPT-2 has them: blanks get others."""
    others = iter(range(BYTES, 2 * BYTES))
    for byte in range(BYTES):
        shown = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        yield byte, chr(byte if shown else next(others))


LETTERS = dict(_letters())
OF_LETTERS = {letter: byte for byte, letter in LETTERS.items()}
_letter = LETTERS.__getitem__


def _bytes(word: str) -> bytes:
    """What a word of the vocabulary stands for; nothing, if it has another letter."""
    try:
        return bytes(map(OF_LETTERS.__getitem__, word))
    except KeyError:
        return b""
