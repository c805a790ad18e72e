"""A Kimi K3 over HTTP: its tags are special tokens, and clients see none of them."""

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
