"""The quick way to tokens comes to those of the tokenizer, or says that it cannot."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from api.text.byte_pairs import LETTERS, LONGEST, LONGEST_ADDED, MOST_ADDED, byte_pair_encoder
from api.text.tokenizing import load_text_codec
from deploy.config import DEMO_MODEL
from tests.fakes.byte_pairs import KINDS, LETTERS_OF, SPECIAL, ours, theirs, trained

MORE = [*LETTERS_OF, *"\t\r\u00a0\u2028😀<>|", *SPECIAL, "'s", "'LL", "aaaa", "   "]
RUNS = (" ", "\n", "a", "'", "1", " \n", "\t \n.", "'S", "漢", "<s>", "é ")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_any_text_has_the_tokenizers_tokens(kind: str, seed: int) -> None:
    tokenizer, random, compared = trained(kind, seed), Random(), 0
    pairs = byte_pair_encoder(tokenizer)
    for _ in range(200):
        text = "".join(random.choices(MORE, k=random.randrange(30)))
        if (tokens := ours(pairs, text)) is not None:
            assert tokens == theirs(tokenizer, text), text
            compared += 1
    assert compared > 80


def made_of(words: list[str], merges: list[tuple[str, str]], *, ignores: bool) -> Tokenizer:
    every = dict.fromkeys([*LETTERS, *words])
    vocab = {word: number for number, word in enumerate(every)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignores))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def merged(random: Random) -> Tokenizer:
    """Merges nobody would train: some can never be, some are listed twice, some too early."""
    words, merges = [*"abc"], list[tuple[str, str]]()
    for _ in range(random.randrange(3, 40)):
        left, right = random.choice(words), random.choice(words)
        whole = left + right
        if len(whole) > 8 or ((left, right) in merges and random.random() < 0.8):
            continue
        splits = [(whole[:at], whole[at:]) for at in range(1, len(whole))]
        others = splits if random.random() < 0.4 else []
        merges += [(left, right), *(one for one in others if {*one} <= {*words})]
        words += [] if whole in words else [whole]
    if random.random() < 0.3:
        random.shuffle(merges)
    return made_of(words, merges, ignores=random.random() < 0.5)


def of_ranks(random: Random) -> Tokenizer:
    """As Llama 3's: words by rank, and of each every pair, also of halves that come later."""
    words = [*"abc"]
    for _ in range(random.randrange(3, 40)):
        left, right = random.choice(words), random.choice(words)
        words.append((left + right)[:8])
    words = list(dict.fromkeys(words))
    for _ in range(random.randrange(4)):
        words.insert(3, words.pop(random.randrange(3, len(words))))
    splits = [(one[:at], one[at:]) for one in words for at in range(1, len(one))]
    merges = [one for one in splits if {*one} <= {*words}]
    return made_of(words, merges, ignores=random.random() < 0.8)


@pytest.mark.parametrize(("maker", "least"), [(merged, 0), (of_ranks, 100)])
def test_any_merges_come_to_the_same_or_are_left_to_the_tokenizer(
    maker: Callable[[Random], Tokenizer], least: int
) -> None:
    random, left = Random(), 0
    for _ in range(150):
        tokenizer = maker(random)
        if (pairs := byte_pair_encoder(tokenizer)) is None:
            left += 1
            continue
        for _ in range(100):
            text = "".join(random.choices("abc", k=random.randrange(random.choice((6, 30)))))
            assert ours(pairs, text) == theirs(tokenizer, text), (text, tokenizer.to_str())
    assert least <= 150 - left
    assert 150 - left > 10


@pytest.mark.parametrize("kind", KINDS)
def test_long_runs_are_no_trouble(kind: str) -> None:
    tokenizer = trained(kind)
    pairs = byte_pair_encoder(tokenizer)
    for run in RUNS:
        text = (run * LONGEST)[: LONGEST - 1] + "a"
        assert ours(pairs, text) == theirs(tokenizer, text)
    assert ours(pairs, "a" * LONGEST + "a") is None


@pytest.mark.parametrize("processor", [None, "$A", "<s> $A", "$A <s>", "a <s> $A <|end|> a"])
def test_what_is_put_around_a_text_is_put_around_it(processor: str | None) -> None:
    tokenizer = trained("llama-3")
    if processor is not None:
        names = [(one, tokenizer.token_to_id(one)) for one in ("a", *SPECIAL)]
        template = processors.TemplateProcessing(single=processor, special_tokens=names)
        places = processors.ByteLevel(trim_offsets=False)
        tokenizer.post_processor = processors.Sequence([places, template])
    pairs = byte_pair_encoder(tokenizer)
    for text in ("", "a", "<s>b<|end|>"):
        assert ours(pairs, text, special=True) == theirs(tokenizer, text, special=True)


ADDED = ["Ã©", "Ġa", "é!", "b", "bb", "bbc", "c)", "(", "<|", "<|a|>", "|a|>é", "[|", "\n"]


@pytest.mark.parametrize("ignores", [False, True])
def test_added_tokens_may_begin_alike_and_be_words_and_letters(*, ignores: bool) -> None:
    """Letters stand for bytes: `Ã©` is also how é is written, and `Ġa` is a blank and a.

    Those that look at a normalized text are looked for in what the others left.
    """
    merges = [("Ã", "©"), ("Ġ", "a"), ("b", "b"), ("a", "c")]
    words = [*(left + right for left, right in merges), "c)", "漢字"]
    random = Random()
    for _ in range(20):
        tokenizer = made_of(words, merges, ignores=ignores)
        tokenizer.add_tokens(
            [AddedToken(one, normalized=random.random() < 0.3) for one in ADDED]
        )
        tokenizer.normalizer = random.choice((None, normalizers.NFC()))
        pairs = byte_pair_encoder(tokenizer)
        for _ in range(200):
            text = "".join(random.choices("é aÃ©Ġbc!()<|[>\n", k=random.randrange(12)))
            assert ours(pairs, text) == theirs(tokenizer, text), text


AROUND = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
MORE_TO_ADD = {
    "blanks": AddedToken("<b>", lstrip=True, normalized=False),
    "blanks behind": AddedToken("<b>", rstrip=True, normalized=False),
    "a word": AddedToken("<b>", single_word=True, normalized=False),
    "never found": AddedToken("e\u0301", normalized=True),
    "long": AddedToken("<" + "b" * LONGEST_ADDED, special=True),
}
MORE_TO_DO = {
    "other words": ("pre_tokenizer", pre_tokenizers.Whitespace()),
    "lower case": ("normalizer", normalizers.Lowercase()),
    "the text twice": ("post_processor", processors.TemplateProcessing(single="$A $A")),
    "two templates": ("post_processor", processors.Sequence([AROUND, AROUND])),
    "around": ("post_processor", processors.RobertaProcessing(("<s>", 0), ("<s>", 0))),
    "special tokens as text": ("encode_special_tokens", True),
    "another model": ("model", models.WordLevel({"x": 0})),
    "no bytes": ("model", models.BPE(vocab={"x": 0}, merges=[])),
}


@pytest.mark.parametrize("name", MORE_TO_ADD)
def test_what_looks_around_itself_is_left_to_the_tokenizer(name: str) -> None:
    tokenizer = trained("gpt-2")
    tokenizer.add_tokens([MORE_TO_ADD[name]])
    assert byte_pair_encoder(tokenizer) is None


@pytest.mark.parametrize("name", MORE_TO_DO)
def test_what_is_more_than_merges_of_bytes_is_left_to_the_tokenizer(name: str) -> None:
    tokenizer = trained("gpt-2")
    setattr(tokenizer, *MORE_TO_DO[name])
    assert byte_pair_encoder(tokenizer) is None


@pytest.mark.parametrize("option", [{"byte_fallback": True}, {"dropout": 0.5}])
def test_merges_with_more_to_them_are_left_to_the_tokenizer(option: dict[str, Any]) -> None:
    tokenizer = trained("gpt-2")
    for name, value in option.items():
        setattr(tokenizer.model, name, value)
    assert byte_pair_encoder(tokenizer) is None


def test_lengths_and_more_added_tokens_than_a_pattern_takes_are_left_to_the_tokenizer() -> None:
    short, padded, many = (trained("gpt-2") for _ in range(3))
    short.enable_truncation(5)
    padded.enable_padding(length=9)
    many.add_special_tokens([f"<{one}>" for one in range(MOST_ADDED)])
    assert [*map(byte_pair_encoder, (short, padded, many))] == [None] * 3


def test_the_bundled_model_is_read_the_quick_way() -> None:
    codec = load_text_codec(DEMO_MODEL)
    assert codec.pairs is not None
    assert codec.fast is not None
    text = "<|user|>What is it, after all?<|end|><|assistant|>"
    for special in (False, True):
        expected = theirs(codec.fast, text, special=special)
        assert codec.encode(text, special_tokens=special) == expected
        assert ours(codec.pairs, text, special=special) == expected
