"""Calls of Granite and Seed-OSS are found in answers, cut at every place; nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.tools.dialects.known import DIALECTS
from tests.fakes.tools import Call, Read, cut, read

GRANITE, SEED = "granite", "seed_oss"
PARIS, MARK = '{"city": "Paris"}', "<|tool_call|>"
WEATHER, CLOCK = ("weather", PARIS, True), ("clock", "{}", True)


def seed(name: str, arguments: str = "") -> str:
    """A call as Seed-OSS has it."""
    inside = f"<function={name}>\n{arguments}</function>"
    return f"<seed:tool_call>\n{inside}\n</seed:tool_call>"


CITY = "<parameter=city>Paris</parameter>\n"
FOUND: list[tuple[str, str, str, list[Call]]] = [
    (GRANITE, f'{MARK}[{{"name": "weather", "arguments": {PARIS}}}]', "", [WEATHER]),
    (
        GRANITE,
        f'So: {MARK} [{{"arguments": {PARIS}, "name": "weather"}},\n{{"name": "clock"}}]\n',
        "So:",
        [WEATHER, CLOCK],
    ),
    (GRANITE, f'{MARK}[{{"name": "clock"}}', "", [CLOCK]),
    (SEED, seed("weather", CITY), "", [WEATHER]),
    (SEED, f"A\n{seed('clock')}\n{seed('weather', CITY)}B", "AB", [CLOCK, WEATHER]),
]
NONE = [
    (GRANITE, '[{"name": "clock", "arguments": {}}]'),
    (GRANITE, f"{MARK}the sea"),
    (GRANITE, f"{MARK}[]"),
    (SEED, "<seed:tool_call>\n<function=>"),
    (SEED, "<tool_call>\n<function=clock>\n</function>\n</tool_call>"),
]
PARTS = [
    *(MARK, '[{"name": "clock"}]', "[", PARIS, MARK[:5]),
    *("<seed:tool_call>", "<function=clock>", CITY, "</function>", "</seed:tool_call>"),
    *("the sea", "\n", " ", "<", "é"),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), FOUND)
def test_calls_are_read_wherever_the_answer_is_cut(
    name: str, text: str, content: str, calls: list[Call]
) -> None:
    for place in range(len(text)):
        found = read(DIALECTS[name].parser, [text[:place], text[place:]])
        assert found == Read(content, calls)


@pytest.mark.parametrize(("name", "text"), NONE)
def test_what_is_no_call_is_content_to_the_last_letter(name: str, text: str) -> None:
    assert read(DIALECTS[name].parser, [*text]) == Read(text, [])


@pytest.mark.parametrize("name", [GRANITE, SEED])
@given(text=st.lists(st.sampled_from(PARTS), max_size=14).map("".join), data=st.data())
def test_anything_at_all_is_read_alike_whole_and_in_pieces(
    name: str, text: str, data: st.DataObject
) -> None:
    whole = read(DIALECTS[name].parser, [text])
    assert read(DIALECTS[name].parser, data.draw(cut(text))) == whole
    if not whole.calls:
        assert whole.content == text
