"""What `pdserve bench` makes of answers that are not as pdserve gives them."""

import json
import re
from collections.abc import Sequence

import pytest

from bench.answers import WrongAnswer, payload, read_answer

TOKEN = {"choices": [{"text": "a", "token_ids": [1]}]}
USAGE = {"choices": [], "usage": {"completion_tokens": 2}}


def framed(*events: object) -> Sequence[tuple[float, bytes]]:
    return [(float(at), json.dumps(event).encode()) for at, event in enumerate(events)]


def test_the_time_of_a_token_is_that_of_its_event() -> None:
    both = {"choices": [{"text": "ab", "token_ids": [1, 2]}]}
    assert read_answer(framed(TOKEN, TOKEN, USAGE), 2).times == [0.0, 1.0]
    assert read_answer(framed({"choices": []}, both, USAGE), 2).times == [1.0, 1.0]


def test_usage_may_come_with_the_last_token() -> None:
    assert read_answer(framed(TOKEN, {**TOKEN, **{"usage": USAGE["usage"]}}), 2).times == [0, 1]


def test_an_event_without_text_is_not_the_first_token() -> None:
    empty, text = {"choices": [{"text": ""}]}, {"choices": [{"text": "a"}]}
    assert read_answer(framed(empty, text, text, empty, USAGE), 2).times == [1.0, 2.0]
    assert read_answer(framed(empty, empty, USAGE), 2).times == [0.0, 1.0]


def test_text_of_several_tokens_does_not_make_each_slower() -> None:
    text = {"choices": [{"text": "abc"}]}
    usage = {"choices": [], "usage": {"completion_tokens": 5}}
    assert read_answer(framed(text, text, usage), 5).times == [0.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((), "an answer without events"),
        ((TOKEN, TOKEN), "without usage"),
        ((TOKEN, USAGE["usage"], {"usage": {"completion_tokens": 1}}), "instead of 2 tokens"),
        ((USAGE,), "without tokens"),
        (({"error": {"message": "it died"}}, USAGE), "it died"),
        ((TOKEN, {"error": "it died"}), "it died"),
        (([1], USAGE), r"[1]"),
    ],
)
def test_what_is_no_answer_is_told_in_words(events: Sequence[object], said: str) -> None:
    with pytest.raises(WrongAnswer, match=re.escape(said)):
        read_answer(framed(*events), 2)


def test_what_is_no_json_is_shown_but_not_a_whole_page_of_it() -> None:
    with pytest.raises(WrongAnswer, match="an event of <html>") as raised:
        read_answer([(0.0, b"<html>" + b"x" * 10_000)], 2)
    assert len(str(raised.value)) < 1000


def test_only_events_have_a_payload() -> None:
    lines = (b"data: {}\r\n", b"data:{}\n", b": alive\n", b"\n", b"data: [DONE]\n", b"id: 1\n")
    assert [payload(line) for line in lines] == [b"{}", b"{}", None, None, None, None]
