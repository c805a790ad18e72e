"""Stop strings are found across any borders, and no more is held back than could be one."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.text.stopping import StopStrings

letters = st.text("ab", max_size=30)
stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
cuts = st.lists(st.text("ab", max_size=4), max_size=15)


def reference(text: str, strings: Sequence[str], unwatched: int = 0) -> tuple[str, str | None]:
    """Slowly: the first place where a stop string is complete, and the longest there."""
    for end in range(unwatched + 1, len(text) + 1):
        for string in sorted(strings, key=len, reverse=True):
            if text[:end].endswith(string):
                return text[: end - len(string)], string
    return text, None


def may_begin(text: str, strings: Sequence[str]) -> int:
    """The longest end of `text` that is the beginning of a stop string, but not all of it."""
    begins = [string[:size] for string in strings for size in range(len(string))]
    return max((len(part) for part in begins if text.endswith(part)), default=0)


@given(strings=stops, parts=cuts, include=st.booleans())
def test_the_answer_ends_where_a_slow_search_says(
    strings: list[str], parts: list[str], include: bool
) -> None:
    watch = StopStrings.of(strings).matcher(include=include)
    said = "".join(watch.read(part) for part in parts) + watch.finish()
    expected, found = reference("".join(parts), strings)
    assert watch.found == found
    assert said == expected + (found if include and found else "")


@given(strings=stops, parts=cuts)
def test_exactly_what_may_begin_a_stop_string_is_held_back(
    strings: list[str], parts: list[str]
) -> None:
    watch, said, text = StopStrings.of(strings).matcher(), "", ""
    for part in parts:
        said, text = said + watch.read(part), text + part
        if watch.found is not None:
            return
        assert len(text) - len(said) == may_begin(text, strings)


@given(strings=stops, before=letters, after=letters)
def test_unwatched_text_ends_nothing_but_may_begin_something(
    strings: list[str], before: str, after: str
) -> None:
    watch = StopStrings.of(strings).matcher()
    said = watch.read(before, watching=False)
    assert len(before) - len(said) == may_begin(before, strings)
    said += watch.read(after) + watch.finish()
    assert (said, watch.found) == reference(before + after, strings, len(before))


def test_after_the_stop_string_there_is_silence() -> None:
    watch = StopStrings.of(["stop"]).matcher()
    assert watch.read("one st") + watch.read("op two") == "one "
    assert watch.read("three") + watch.finish() == ""


@pytest.mark.parametrize("text", ["STOP", "st op", "sto"])
def test_near_misses_are_said(text: str) -> None:
    watch = StopStrings.of(["stop"]).matcher()
    assert watch.read(text) + watch.finish() == text
