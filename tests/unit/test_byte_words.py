"""How a text is cut into words: the quick way knows the same letters and cuts as they do."""

import sys
from collections.abc import Iterator
from random import Random
from unicodedata import is_normalized

import msgspec
import pytest
from tokenizers import pre_tokenizers

from api.text.byte_pairs import byte_pair_encoder
from api.text.pre_tokenization import DEEPSEEK_3, GPT_OSS, LLAMA_3, is_cut_alike, pattern_of
from tests.fakes.byte_pairs import KINDS, ours, split_by, theirs, trained

PLACES = "a{0}b 1{0}2 {0}{0} {0}a\n{0}'{0} '{0}x"
MANY = 64
NOBODYS = ["\u017f", "\u0378", "\U0001e900", "\ud800"]  # of no table that all would have
SOME = [
    *"aB12² \n\r\t!'<_$、・ーカの漢字゛\u30a0ヿ\u0301\u3099\0\1\u200b😀ʰßªą\u00a0\u3000ู",
    *("  ", "\r\n", "'s", "'LL", "12345", "é!", "/\n"),
]


def sure() -> Iterator[str]:
    every = map(chr, range(sys.maxunicode + 1))
    return (one for one in every if is_cut_alike(one, normalized=False))


@pytest.mark.parametrize("kind", KINDS)
def test_both_know_the_same_letters_digits_signs_and_blanks(kind: str) -> None:
    """One after the other in all kinds of neighbourhood, many in one text."""
    tokenizer, every = trained(kind), list(sure())
    pairs = byte_pair_encoder(tokenizer)
    assert len(every) > 50_000
    for start in range(0, len(every), MANY):
        text = "".join(PLACES.format(one) for one in every[start : start + MANY])
        tokens = ours(pairs, text)
        assert tokens == theirs(tokenizer, text) or not is_normalized("NFC", text), text


@pytest.mark.parametrize("kind", KINDS)
def test_any_neighbours_are_cut_alike(kind: str) -> None:
    random = Random()
    tokenizer = trained(kind, random.randrange(1000))
    pairs = byte_pair_encoder(tokenizer)
    for _ in range(3000):
        text = "".join(random.choices(SOME, k=random.randrange(9)))
        tokens = ours(pairs, text)
        left = kind == "qwen-2" and not is_normalized("NFC", text)
        assert tokens == (None if left else theirs(tokenizer, text)), text


@pytest.mark.parametrize("letter", NOBODYS)
def test_what_letters_are_not_sure_of_is_left_to_the_tokenizer(letter: str) -> None:
    assert ours(byte_pair_encoder(trained("llama-3")), f"a{letter}") is None


PLAIN = pre_tokenizers.ByteLevel
KNOWN = {
    "gpt-2": PLAIN(add_prefix_space=False),
    "llama-3": split_by(LLAMA_3),
    "gpt-4": split_by(LLAMA_3, behavior="removed"),
    "gpt-4o": split_by(GPT_OSS, behavior="removed"),
    "deepseek-3": split_by(*DEEPSEEK_3),
}
OTHERS = {
    "other words": split_by(r"\w+|\W+"),
    "other cuts": split_by(LLAMA_3, behavior="contiguous"),
    "some of them": split_by(*DEEPSEEK_3[1:]),
    "another order": split_by(*reversed(DEEPSEEK_3)),
    "and no rest": split_by(*DEEPSEEK_3, behavior="removed"),
    "twice": split_by(LLAMA_3, LLAMA_3),
    "a blank before": PLAIN(add_prefix_space=True),
    "one word": PLAIN(add_prefix_space=False, use_regex=False),
    "a blank, then words": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), PLAIN(add_prefix_space=False, use_regex=False)]
    ),
    "digits": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), PLAIN(add_prefix_space=False, use_regex=False)]
    ),
    "cut twice": pre_tokenizers.Sequence(
        [split_by(LLAMA_3)[0], PLAIN(add_prefix_space=False, use_regex=True)]
    ),
    "a blank before each": pre_tokenizers.Sequence(
        [split_by(LLAMA_3)[0], PLAIN(add_prefix_space=True, use_regex=False)]
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_ways_to_cut_are_known(name: str) -> None:
    assert pattern_of(msgspec.json.decode(KNOWN[name].__getstate__())) is not None


@pytest.mark.parametrize("name", OTHERS)
def test_other_ways_to_cut_are_left_to_the_tokenizer(name: str) -> None:
    assert pattern_of(msgspec.json.decode(OTHERS[name].__getstate__())) is None
