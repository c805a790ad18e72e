"""Calls over HTTP, as OpenAI's own types and client read them, streamed and not."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from api.answering import Answer
from api.chat import ChatFormat
from api.envelopes import AnswerWriter
from api.generator import Event, Leg, PromptEvent, TokenEvent
from api.logprobs import LogprobFormatter
from api.sse import answer_body
from api.text.tokenizing import TextCodec
from engine.request import FinishReason, Logprob, Request
from tests.fakes.asking import chat
from tests.fakes.http import Client, Json, Said
from tests.fakes.text import EOS, TEMPLATE, FakeDoor, byte_level, says, served
from tests.fakes.tools import TOOLS, special

HERMES = byte_level(TEMPLATE + "<tool_call>")
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
FIRST, SECOND = f'{{"name": "weather", "parameters": {PARIS}}}', '{"name": "clock"}'
LIST = f"[{FIRST}, {SECOND}]"
NAMED = {"type": "function", "function": {"name": "weather"}}
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
BROKEN = '<tool_call>{"name": "weather", "arguments": {"a": ]'
Calls = list[tuple[str, str]]
"""Names and arguments."""
ONE: Calls = [("weather", PARIS)]
TWO: Calls = [*ONE, ("clock", "{}")]
MUST = {"tool_choice": "required"}


def client(*texts: str, finish: FinishReason = STOP, codec: TextCodec = HERMES) -> Client:
    """Of a door that says one of these in each choice."""

    def script(request: Request, _: Leg) -> Sequence[Event]:
        tokens = codec.encode(texts[request.sampling.sample_index])
        return says([*tokens, EOS] if finish is STOP else tokens, finish)

    return Client(FakeDoor(script), served(codec))


async def ask(door: Client, *, stream: bool = False, **fields: object) -> Said:
    asked: Json = {"tools": TOOLS, "max_tokens": 150, "stream": stream, **fields}
    said = await door.chat(**asked)
    assert said.status == 200, said.body
    return said


def heard(said: Said) -> list[Json]:
    """The choices, which a client of OpenAI's makes of the chunks where there are chunks."""
    if "text/event-stream" not in said.headers["content-type"]:
        ChatCompletion.model_validate(said.json)
        return list(said.json["choices"])
    state = ChatCompletionStreamState()
    for event in said.events:
        state.handle_chunk(ChatCompletionChunk.model_validate(event))
    return list(state.current_completion_snapshot.model_dump()["choices"])


def summary(choice: Json) -> tuple[str, Calls, str]:
    message = choice["message"]
    calls = message.get("tool_calls") or []
    assert all(call["type"] == "function" and call["id"] for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    found = [(one["function"]["name"], one["function"]["arguments"]) for one in calls]
    return message["content"] or "", found, choice["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        (CALL, {}, ("", ONE, "tool_calls")),
        (
            f"Hm.\n{CALL}\n{CLOCK}",
            {},
            ("Hm.", TWO, "tool_calls"),
        ),
        ("the sea", {}, ("the sea", [], "stop")),
        ("<tool_call>the sea", {}, ("<tool_call>the sea", [], "stop")),
        (CALL, {"tool_choice": "none"}, (CALL, [], "stop")),
        (
            f"{CALL}{CLOCK} x",
            {"parallel_tool_calls": False},
            (" x", ONE, "tool_calls"),
        ),
        (
            LIST,
            MUST,
            ("", TWO, "tool_calls"),
        ),
        (PARIS, {"tool_choice": NAMED}, ("", ONE, "stop")),
        (f"{BROKEN}{CLOCK}", {}, ("]", [("weather", '{"a": '), ("clock", "{}")], "stop")),
        (CALL, {"stop": "Par"}, ("", [("weather", '{"city": "')], "stop")),
        (
            LIST,
            {"tool_choice": "required", "stop": "]"},
            ("", TWO, "tool_calls"),
        ),
    ],
)
async def test_calls_and_content_are_told_apart(
    text: str, fields: dict[str, Any], expected: tuple[str, Calls, str], stream: bool
) -> None:
    [choice] = heard(await ask(client(text), stream=stream, **fields))
    assert summary(choice) == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        (CALL[: CALL.index("Par")], {}, ("", [("weather", '{"city": "')], "length")),
        (CALL, {}, ("", ONE, "length")),
        (f"[{FIRST}, {SECOND[:9]}", MUST, ("", ONE, "length")),
        (CALL[: CALL.index("uments")], {}, ("", [("weather", "")], "length")),
        (f"Hm.\n{CALL[:16]}", {}, ("Hm.", [], "length")),
        (PARIS[:-1], {"tool_choice": NAMED}, ("", [("weather", PARIS[:-1])], "length")),
    ],
)
async def test_an_answer_cut_short_says_so(
    text: str, fields: dict[str, Any], expected: tuple[str, Calls, str], stream: bool
) -> None:
    said = await ask(client(text, finish=LENGTH), stream=stream, **fields)
    [choice] = heard(said)
    assert summary(choice) == expected


async def test_deltas_come_in_openais_order() -> None:
    said = await ask(client(f"Hm.\n{CALL}\n{CLOCK}"), stream=True)
    deltas = [event["choices"][0]["delta"] for event in said.events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(len(delta) <= 1 for delta in deltas[1:])
    calls = [one for delta in deltas for one in delta.get("tool_calls", [])]
    assert all(len(delta.get("tool_calls", [])) <= 1 for delta in deltas)
    first, second = [call for call in calls if "id" in call]
    assert first == {
        "index": 0,
        "id": first["id"],
        "type": "function",
        "function": {"name": "weather", "arguments": ""},
    }
    assert second["index"] == 1
    more = [call for call in calls if "id" not in call]
    assert len(more) > 4
    assert all(call.keys() == {"index", "function"} for call in more)
    assert all(call["function"].keys() == {"arguments"} for call in more)
    finishes = [event["choices"][0]["finish_reason"] for event in said.events]
    assert finishes == [None] * (len(finishes) - 1) + ["tool_calls"]


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_call_independently(stream: bool) -> None:
    door = client(CALL, "the sea", f"{CLOCK}{CALL}")
    choices = heard(await ask(door, stream=stream, n=3))
    assert [summary(one)[1:] for one in sorted(choices, key=lambda one: one["index"])] == [
        (ONE, "tool_calls"),
        ([], "stop"),
        ([("clock", "{}"), ("weather", PARIS)], "tool_calls"),
    ]


async def test_a_call_that_is_named_has_index_0_in_every_choice() -> None:
    said = await ask(client(PARIS, PARIS), stream=True, n=2, tool_choice=NAMED)
    deltas = [one["delta"] for event in said.events for one in event["choices"]]
    assert {call["index"] for delta in deltas for call in delta.get("tool_calls", [])} == {0}


async def test_a_message_of_calls_alone_has_no_content() -> None:
    said = await ask(client(CALL))
    message = said.json["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning"] is None
    said = await ask(client("the sea"))
    assert "tool_calls" not in said.json["choices"][0]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_markers_that_are_special_tokens_are_read_and_others_are_not_said(
    stream: bool,
) -> None:
    codec = special("<tool_call>", "</tool_call>", "<|other|>")
    door = client(f"<|other|>Hm. {CALL}", codec=codec)
    [choice] = heard(await ask(door, stream=stream))
    assert summary(choice) == ("Hm.", ONE, "tool_calls")
    [plain] = heard(await ask(door, stream=stream, tool_choice="none"))
    assert "<" not in plain["message"]["content"]


async def test_every_token_is_told_once_beside_calls() -> None:
    tokens = [*HERMES.encode(CALL), EOS]
    usage = {"include_usage": True}
    said = await ask(client(CALL), stream=True, return_token_ids=True, stream_options=usage)
    *events, closing = said.events
    told = [one for event in events for one in event["choices"][0].get("token_ids", [])]
    assert told == tokens
    assert closing["usage"]["completion_tokens"] == len(tokens)
    whole = await ask(client(CALL), return_token_ids=True)
    assert whole.json["choices"][0]["token_ids"] == tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_of_all_tokens_marks_and_calls_too(stream: bool) -> None:
    tokens = HERMES.encode(CALL)
    told = [TokenEvent((one,), logprobs=((Logprob(one, -1.0, 1),),)) for one in tokens]
    events: list[Event] = [PromptEvent(0), *told, TokenEvent((EOS,), STOP)]
    door = Client(FakeDoor(lambda request, leg: events), served(HERMES))
    said = await ask(door, stream=stream, logprobs=True)
    chunks = said.events if stream else [said.json]
    found = [one["choices"][0]["logprobs"] for one in chunks]
    spelt = [entry["bytes"] for one in found if one for entry in one["content"]]
    assert b"".join(map(bytes, spelt)).decode() == CALL
    [choice] = heard(said)
    assert summary(choice) == ("", ONE, "tool_calls")


async def test_a_mistral_gets_names_that_its_template_takes_back() -> None:
    codec = byte_level(TEMPLATE + "[TOOL_CALLS]")
    for text, choice in ((f"[TOOL_CALLS]weather{PARIS}", "auto"), (LIST, "required")):
        [said] = heard(await ask(client(text, codec=codec), tool_choice=choice))
        assert len(said["message"]["tool_calls"][0]["id"]) == 9


@pytest.mark.parametrize(("times", "aside"), [(1, False), (500, True)])
async def test_a_long_answer_is_read_in_a_thread(times: int, aside: bool) -> None:
    threads = list[str]()

    def new_id(_name: str, _number: int) -> str:
        threads.append(threading.current_thread().name)
        return "id"

    asked = await chat({"tools": TOOLS}, door=served(HERMES))
    assert asked.calling
    tellers = [replace(asked.calling, new_id=new_id).new_stream()]
    tokens = (*HERMES.encode(f"{'the sea ' * times}{CALL}"), EOS)
    events: list[Event] = [PromptEvent(0), TokenEvent(tokens, STOP)]
    answer = Answer(FakeDoor(lambda request, leg: events), asked)
    said = await answer_body(
        AnswerWriter(answer, ChatFormat(LogprobFormatter(HERMES.vocabulary), tellers), 7)
    )
    assert b"weather" in said
    assert (threads != [threading.main_thread().name]) is aside


async def test_bursts_of_tokens_are_split_into_the_same_deltas() -> None:
    """What is told of the tokens comes once, and so does the end, last of all."""
    tokens = (*HERMES.encode(f"{CALL}{CLOCK}"), EOS)
    told = tuple((Logprob(one, -1.0, 1),) for one in tokens)
    events: list[Event] = [PromptEvent(0), TokenEvent(tokens, STOP, logprobs=told)]
    door = Client(FakeDoor(lambda request, leg: events), served(HERMES))
    said = await ask(door, stream=True, return_token_ids=True, logprobs=True)
    [choice] = heard(said)
    assert summary(choice) == ("", TWO, "tool_calls")
    chunks = [event["choices"][0] for event in said.events]
    assert [one for chunk in chunks for one in chunk.get("token_ids", [])] == [*tokens]
    assert sum(
        len(chunk["logprobs"]["content"]) for chunk in chunks if chunk["logprobs"]
    ) == len(tokens)
    assert [chunk["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
