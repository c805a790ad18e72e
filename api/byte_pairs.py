"""Texts to tokens by merges of bytes, several times quicker than a tokenizer's own library.

Of tokenizers that are nothing else: GPT-2's, Llama 3's, Qwen's and their like. tiktoken knows a
token by its bytes and merges whichever two neighbours are the token of the lowest rank; a
`tokenizer.json` lists the pairs that may merge. Both come to the same tokens if each token is
merged from one pair alone whenever its bytes stand by themselves, and that pair is listed.
`_ranks` looks at every listed pair: one is never seen side by side if a merge of a lower rank
reaches over the border between its halves, which is found by undoing the latest merges on both
sides of it (github.com/github/rust-gems, crates/bpe: `is_valid_token_pair`).

What is not known to be the same is left to the tokenizer: other kinds, other patterns, and
characters that two libraries' tables of letters may not agree on.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import tiktoken

LONGEST = 1 << 18  # characters: no other thread runs while added tokens are looked for
BYTES = 256
OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
NORMALIZERS = (None, {"type": "NFC"})  # which leaves texts of the letters below as they are
GPT_2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = frozenset({LLAMA_3, LLAMA_3.replace("{1,3}", "")})  # Qwen's has one digit
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
                {"type": "Split", "behavior": "Isolated", "invert": False} as split,
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            pattern = split["pattern"].get("Regex")
            return pattern if pattern in PATTERNS else None
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
    """Every token's, by its bytes; None where tiktoken would come to others."""
    if model["type"] != "BPE" or any(model.get(one) for one in OPTIONS):
        return None
    words = {one for one in model["vocab"] if one not in added}
    ranks = {bytes([byte]): byte for byte in range(BYTES)}
    if not words.issuperset(map(_letter, range(BYTES))):
        return None
    halves = [(rank, rank) for rank in range(BYTES)]
    pairs = dict[tuple[int, int], int]()
    for left, right in _merges(model["merges"]):
        whole, first, second = map(_bytes, (left + right, left, right))
        if first not in ranks or second not in ranks or left + right not in words:
            return None
        both, rank = (ranks[first], ranks[second]), len(halves)
        if whole not in ranks and _stays(*both, rank, pairs, halves):
            ranks[whole] = pairs[both] = rank
            halves.append(both)
    known = len(ranks) == len(words)
    return ranks if known or not model.get("ignore_merges") else None


def _merges(listed: list[Any]) -> Iterator[tuple[str, str]]:
    for one in listed:
        left, right = one.split(" ") if isinstance(one, str) else one
        yield left, right


def _stays(
    left: int,
    right: int,
    limit: int,
    pairs: Mapping[tuple[int, int], int],
    halves: list[tuple[int, int]],
) -> bool:
    """Whether no merge of a rank below `limit` reaches over the border between the two."""
    while pairs.get((left, right), limit) >= limit:
        if left > right:  # its own merge was the latest, so before it ..
            limit, left = left, halves[left][1]
            if left == limit:
                limit, right = right + 1, halves[right][0]
                if right + 1 == limit:
                    return True
        else:
            limit, right = right + 1, halves[right][0]
            if right + 1 == limit:
                limit, left = left, halves[left][1]
                if left == limit:
                    return True
    return False


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
