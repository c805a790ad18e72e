"""The ends of a long text have the tokens that they have in the whole, by any tokenizer."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from api.text.truncation import MARGIN, NoCutPoint, TextTruncator
from tests.fakes.tokenizers import CORPUS, KINDS, TRAINERS, WORDS, encoded, trained

STRETCH, OVERLAP = 100, 200
TEXTS = st.one_of(
    st.lists(st.sampled_from(WORDS), min_size=150, max_size=300).map(" ".join),
    st.lists(st.sampled_from(WORDS), min_size=150, max_size=300).map("".join),
    st.lists(st.sampled_from("ab12 \n."), min_size=400, max_size=900).map("".join),
    st.sampled_from(["a", "ab", "1", "12 ", "東京", " ", "\n", "🚀", "a "]).map(
        lambda one: one * 500
    ),
)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, most=st.integers(1, 80))
@example(text="a" * 999, most=1)  # where tokens begin depends on all that is before
def test_an_end_has_the_tokens_that_it_has_in_the_whole(
    kind: Callable[[], Tokenizer], text: str, most: int
) -> None:
    tokenizer = trained(kind)
    whole, reader = encoded(tokenizer, text), TextTruncator(tokenizer, STRETCH, OVERLAP)
    try:
        last, first = reader.last(text, most), reader.first(text, most)
    except NoCutPoint:
        return
    assert text.endswith(last)
    assert text.startswith(first)
    assert last == text or encoded(tokenizer, last)[-most:] == whole[-most:]
    assert encoded(tokenizer, first)[:most] == whole[:most]


@pytest.mark.parametrize("kind", KINDS)
def test_of_usual_texts_little_is_left(kind: Callable[[], Tokenizer]) -> None:
    tokenizer, text = trained(kind), "the dog sat on the cat, and ran. " * 90
    reader = TextTruncator(tokenizer, STRETCH, OVERLAP)
    longest = 2 * (STRETCH + OVERLAP)
    assert len(reader.last(text, 5)) < longest
    assert len(reader.first(text, 5)) < longest + 8 * MARGIN


def test_where_nothing_says_that_a_cut_is_none_there_is_none() -> None:
    """A likeliest row of pieces may be another one as soon as anything is added."""
    made = Tokenizer(models.Unigram())
    made.train_from_iterator(CORPUS, TRAINERS["Unigram"]())
    with pytest.raises(NoCutPoint):
        TextTruncator(made, STRETCH, OVERLAP).last("the cat " * 200, 5)
