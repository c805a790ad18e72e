"""Pieces add up to what decoding all tokens at once gives, and none has half a character."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.text.detokenizing import CONTEXT, MAX_WINDOW, REPLACEMENT, Detokenizer
from api.text.tokenizing import TextCodec
from tests.fakes.text import EOS, TEXT, byte_level, metaspace

BYTES, WORDS, FALLBACK = byte_level(), metaspace(), metaspace(byte_fallback=True)
CODECS = pytest.mark.parametrize(
    "codec", [BYTES, WORDS, FALLBACK], ids=["bytes", "words", "sp"]
)
HALF = BYTES.encode("…")[:1]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
any_tokens = st.lists(st.integers(0, 400), max_size=120)  # some are in no vocabulary


def pieces(codec: TextCodec, tokens: Sequence[int], *, skip: bool = True) -> list[str]:
    detokenizer = codec.detokenizer(skip_special_tokens=skip)
    return [*(detokenizer.add(token) for token in tokens), detokenizer.finish()]


@CODECS
@given(text=texts)
def test_any_text_comes_back_piece_by_piece(codec: TextCodec, text: str) -> None:
    tokens = codec.encode(text)
    assert "".join(pieces(codec, tokens)) == codec.decode(tokens)


@CODECS
@given(before=texts, text=texts)
def test_a_text_that_goes_on_is_said_as_it_would_be_with_what_was_before(
    codec: TextCodec, before: str, text: str
) -> None:
    prompt, tokens = codec.encode(before), codec.encode(text)
    detokenizer = codec.detokenizer().after_prompt(prompt)
    said = "".join([*map(detokenizer.add, tokens), detokenizer.finish()])
    whole = codec.decode(prompt + tokens)
    assert REPLACEMENT in whole or codec.decode(prompt) + said == whole


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("codec", [BYTES, WORDS], ids=["bytes", "words"])
@given(tokens=any_tokens)
def test_any_tokens_come_back_piece_by_piece(
    codec: TextCodec, tokens: list[int], skip: bool
) -> None:
    said = "".join(pieces(codec, tokens, skip=skip))
    assert said == codec.decode(tokens, skip_special_tokens=skip)


@given(tokens=any_tokens)
def test_broken_bytes_among_good_ones_do_not_take_words_away(tokens: list[int]) -> None:
    """Byte fallback gives up a whole run of bytes for one bad one; what was said stays said."""
    words = [token for token in tokens if not 2 <= token < 258]
    said = "".join(pieces(FALLBACK, tokens))
    letters = [letter for letter in FALLBACK.decode(words) if letter.strip()]
    rest = iter(said)
    assert all(letter in rest for letter in letters)


@given(text=texts)
def test_no_piece_has_half_a_character(text: str) -> None:
    whole = text.replace(REPLACEMENT, "")
    for piece in pieces(BYTES, BYTES.encode(whole)):
        assert REPLACEMENT not in piece


@CODECS
def test_text_is_said_as_soon_as_it_is_certain(codec: TextCodec) -> None:
    tokens = codec.encode("the cat sat")
    assert pieces(codec, tokens)[0] == codec.decode(tokens[:1])
    assert pieces(codec, tokens)[-1] == ""


def test_a_space_after_a_token_without_text_is_kept() -> None:
    assert FALLBACK.fast is not None
    the, nothing = (FALLBACK.fast.token_to_id(word) for word in ("▁the", ""))
    tokens = [*[the] * 2 * CONTEXT, nothing, the]
    assert "".join(pieces(FALLBACK, tokens)) == FALLBACK.decode(tokens)


def test_a_space_after_a_special_token_is_kept() -> None:
    the, cat = (WORDS.fast.encode(word).ids[-1] for word in ("the", "cat"))  # type: ignore[union-attr]
    tokens = [the, EOS, cat, EOS, the]
    assert "".join(pieces(WORDS, tokens)) == WORDS.decode(tokens)


@pytest.mark.parametrize(
    "tokens",
    [BYTES.encode(TEXT) * 20, HALF * 500, [EOS] * 500],
    ids=["text", "garbage", "eos"],
)
def test_a_token_costs_the_same_at_the_end_as_at_the_beginning(tokens: list[int]) -> None:
    longest = 0

    def decode(window: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(window))
        return BYTES.decode(window)

    detokenizer = Detokenizer(decode, lambda token: token != EOS)
    said = "".join(detokenizer.add(token) for token in tokens) + detokenizer.finish()
    assert said == BYTES.decode(tokens)
    assert longest <= MAX_WINDOW + CONTEXT
