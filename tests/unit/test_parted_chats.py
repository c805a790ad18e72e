"""A conversation has the same tokens turn by turn, and turns that are known are not encoded."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from api.text.turns import (
    MOST_PARTS,
    STRETCH,
    TurnCache,
    TurnSplitter,
    mark_offsets,
    turn_splitter,
)
from tests.fakes.tokenizers import KINDS, WORDS, encoded, trained

START, END, ASIDE = "<|start|>", "<|end|>", "[A]"
TEMPLATE = "{{ '<|start|>' + role }}<|end|>[A]<blank><word>Word<|end|>more"
STRANGE = (
    AddedToken("<blank>", lstrip=True, normalized=False),
    AddedToken("<trail>", rstrip=True, normalized=False),
    AddedToken("<word>", single_word=True, normalized=False),
    AddedToken("mat", single_word=True, normalized=True),
    AddedToken("the cat", normalized=True),
    AddedToken("<|start", normalized=False),
    AddedToken("end|> ", normalized=False),
)
WORDLIKE = ("\u203fm", "\u24b6m", "\u0301m", "\u200dm")  # \\w of Rust, and not of Python
PIECES = (
    *(START, END, ASIDE, "<|start", "|>", "<|end", "<|", "|>x", "[", "A]", "end|> "),
    *("<blank>", " <blank>", "<trail>", "<trail> ", "<word>", "<word>s", "mat", "mats"),
    *(*WORDS, " ", "\n", "the cat"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@cache
def marked(kind: Callable[[], Tokenizer]) -> Tokenizer:
    """With marks, and what may be taken for one or get in its way."""
    tokenizer = Tokenizer.from_str(trained(kind).to_str())
    tokenizer.add_special_tokens([START, END, ASIDE])
    tokenizer.add_tokens(list(STRANGE))
    return tokenizer


class Stretches:
    """Remembers how much was searched at once."""

    def __init__(self, marks: re.Pattern[str]) -> None:
        self.marks, self.sizes = marks, list[int]()

    def finditer(self, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
        self.sizes.append(min(end, len(text)) - start)
        return self.marks.finditer(text, start, end)


def parts_of(tokenizer: Tokenizer, template: str = TEMPLATE) -> TurnSplitter:
    parts = turn_splitter(tokenizer, template)
    assert parts is not None
    return parts


def with_tokens(*added: str | AddedToken) -> Tokenizer:
    tokenizer = Tokenizer.from_str(trained(KINDS[0]).to_str())
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) if isinstance(t, str) else t for t in added]
    )
    return tokenizer


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_parts_in_a_row_have_the_tokens_of_the_whole(
    kind: Callable[[], Tokenizer], text: str
) -> None:
    tokenizer = marked(kind)
    parts = parts_of(tokenizer)(text)
    assert "".join(parts) == text
    said = [token for part in parts for token in encoded(tokenizer, part)]
    assert said == encoded(tokenizer, text)


def test_a_text_is_parted_before_each_mark() -> None:
    parts = parts_of(marked(KINDS[0]))
    said = [f"{START}user\nHello", f"{END}\n", f"{START}assistant"]
    assert parts("".join(said)) == said
    assert parts("Hi" + "".join(said)) == ["Hi", *said]


def test_what_no_template_writes_is_no_mark() -> None:
    parts = turn_splitter(with_tokens("<a>", "<b>"), "{{ '<a>' }}")
    assert parts is not None
    assert parts("1<a>2<b>3<a>4") == ["1", "<a>2<b>3", "<a>4"]


@pytest.mark.parametrize(
    "mark",
    [
        AddedToken("<m>", normalized=True),
        AddedToken("<m>", lstrip=True, normalized=False),
        AddedToken("<m>", single_word=True, normalized=False),
        *("m>", "\nm", "<m<", *WORDLIKE),
    ],
)
def test_some_are_none(mark: str | AddedToken) -> None:
    assert turn_splitter(with_tokens(mark), " ".join(("<m> m> \nm <m<", *WORDLIKE))) is None


@pytest.mark.parametrize("mark", WORDLIKE)
def test_whole_words_end_before_less_than_python_says(mark: str) -> None:
    """So before these a tokenizer finds no word, and would if the text ended there."""
    tokenizer = with_tokens(mark, AddedToken("ox", single_word=True, normalized=False))
    apart = [*encoded(tokenizer, "ox"), *encoded(tokenizer, mark)]
    assert encoded(tokenizer, f"ox{mark}") != apart


@pytest.mark.parametrize("mark", [START, ASIDE])
def test_a_long_text_is_searched_in_stretches(mark: str) -> None:
    """As no other thread goes on meanwhile; a mark may stand at the end of one or across it."""
    longest = len(START)
    for place in range(STRETCH - longest - 1, STRETCH + longest):
        text = f"{'<' * place}{mark}{'<' * 2 * STRETCH}{mark}"
        search = Stretches(re.compile(f"{re.escape(START)}|{re.escape(ASIDE)}"))
        found = list(mark_offsets(search, text, longest))  # type: ignore[arg-type]
        assert found == [place, len(text) - len(mark)]
        assert max(search.sizes) < STRETCH + longest


@pytest.mark.parametrize("other", ["x<", "x<m", "<m>x", "x<m>"])
def test_none_is_one_that_another_may_reach_into(other: str) -> None:
    """As the longest that begins first is found."""
    tokenizer = with_tokens("<m>", other)
    assert turn_splitter(with_tokens("<m>"), "<m>") is not None
    assert turn_splitter(tokenizer, "<m>") is None


def test_a_tokenizer_that_finds_no_special_tokens_has_no_marks() -> None:
    tokenizer = with_tokens("<m>")
    tokenizer.encode_special_tokens = True
    assert turn_splitter(tokenizer, "<m>") is None
    assert turn_splitter(None, "<m>") is None


def test_what_has_too_many_parts_is_no_conversation() -> None:
    parts = parts_of(marked(KINDS[0]))
    assert len(parts(START * (MOST_PARTS - 1))) == MOST_PARTS - 1
    assert not parts(START * MOST_PARTS)


class Encoder:
    """Lengths, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, part: str) -> Sequence[int]:
        self.asked.append(part)
        return (len(part),)


def words(text: str) -> Sequence[str]:
    return text.split()


def read(turns: TurnCache, text: str) -> tuple[list[int], list[str]]:
    encode = Encoder()
    return [token for part in turns.tokens(text, encode) for token in part], encode.asked


def test_only_what_is_new_is_encoded() -> None:
    turns = TurnCache(words)
    assert read(turns, "you are kind") == ([3, 3, 4], ["you", "are", "kind"])
    assert read(turns, "you are kind today") == ([3, 3, 4, 5], ["today"])
    assert read(turns, "are you today") == ([3, 3, 5], [])


def test_a_text_without_parts_is_encoded_each_time() -> None:
    turns = TurnCache(lambda _: ())
    for _ in range(2):
        assert read(turns, "you are") == ([7], ["you are"])


def test_those_that_were_used_last_are_kept() -> None:
    turns = TurnCache(words)
    read(turns, "aa")
    turns.max_bytes = 3 * turns._used_bytes
    assert read(turns, "bb cc aa dd")[1] == ["bb", "cc", "dd"]
    assert read(turns, "cc dd aa")[1] == []
    assert read(turns, "bb")[1] == ["bb"]
    assert turns._used_bytes <= turns.max_bytes


def test_what_two_encode_at_once_takes_its_room_once() -> None:
    turns = TurnCache(words)
    read(turns, "aa")
    size = turns._used_bytes

    def encode(part: str) -> Sequence[int]:
        read(turns, part)
        return (len(part),)

    assert list(turns.tokens("bb", encode))
    assert turns._used_bytes == 2 * size


def test_what_would_push_out_half_of_all_is_not_kept() -> None:
    turns = TurnCache(words)
    read(turns, "aa")
    turns.max_bytes = 4 * turns._used_bytes
    long = "b" * (2 * turns._used_bytes + sys.getsizeof(""))
    assert read(turns, long)[1] == read(turns, long)[1] == [long]
    assert read(turns, "aa")[1] == []
