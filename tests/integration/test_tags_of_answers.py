"""A Kimi K3 and a Hy4 over HTTP: their tags are special tokens, which clients do not see."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from api.generator import Event, Leg
from api.tools.dialects.kimi_elements import MARKERS, closing, opening
from engine.request import Request
from tests.fakes.http import Client
from tests.fakes.text import EOS, FakeDoor, says, served
from tests.fakes.tools import TOOLS, special
from tests.integration.test_tool_calls import heard, summary

CODEC = special(*MARKERS, end=opening("think"))
PLACE = f'<|open|>argument key="city" type="string"<|sep|>Paris{closing("argument")}'
CALL = f'<|open|>call tool="weather" index="1"<|sep|>{PLACE}{closing("call")}'
SECTION = f"{opening('tools')}{CALL}{closing('tools')}"
ANSWER = (
    f"Hm.{closing('think')}{opening('response')}I look.{closing('response')}"
    f"{SECTION}{closing('message')}"
)
CALLED = [("weather", '{"city": "Paris"}')]


def client(answer: str) -> Client:
    def script(_: Request, __: Leg) -> Sequence[Event]:
        return says([*CODEC.encode(answer), EOS])

    door = replace(served(CODEC, context=2_000), reasoning_parser="kimi_k3")
    return Client(FakeDoor(script), door)


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_text_and_calls_are_told_apart(stream: bool) -> None:
    said = await client(ANSWER).chat(max_tokens=500, stream=stream, tools=TOOLS)
    assert said.status == 200, said.body
    [choice] = heard(said)
    assert summary(choice) == ("I look.", CALLED, "tool_calls")
    assert choice["message"]["reasoning"] == "Hm."


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_tools_is_text(stream: bool) -> None:
    [choice] = heard(await client(ANSWER).chat(max_tokens=500, stream=stream))
    assert summary(choice) == (f"I look.{SECTION}", [], "stop")
    plain = ANSWER.replace(SECTION, "")
    [choice] = heard(await client(plain).chat(max_tokens=500, stream=stream))
    assert summary(choice) == ("I look.", [], "stop")
    assert choice["message"]["reasoning"] == "Hm."


@pytest.mark.parametrize("word", ["", ":6124c78e"])
async def test_the_tags_of_a_hy4_have_its_tokenizers_word(word: str) -> None:
    names = ("think", "tool_calls", "tool_call", "arg_key", "arg_value")
    tags = [f"<{slash}{name}{word}>" for name in names for slash in ("", "/")]
    codec = special(*tags, end=tags[0])
    _, end_of_think, *section, opens, closes, key, end_of_key, value, end_of_value = tags
    call = f"{opens}weather{key}city{end_of_key}{value}Paris{end_of_value}{closes}"
    answer = f"Hm.{end_of_think}{section[0]}{call}{section[1]}"

    def script(_: Request, __: Leg) -> Sequence[Event]:
        return says([*codec.encode(answer), EOS])

    door = served(codec, context=2_000)
    door = replace(door, reasoning_parser="hy_v4", tool_call_parser="hy_v4")
    said = await Client(FakeDoor(script), door).chat(max_tokens=500, tools=TOOLS)
    [choice] = heard(said)
    assert summary(choice) == ("", CALLED, "tool_calls")
    assert choice["message"]["reasoning"] == "Hm."
