"""Reasoning over HTTP, as OpenAI's own types read it: streamed and not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from api.answering import Answer
from api.chat import ChatFormat
from api.envelopes import AnswerWriter
from api.generator import Event, Leg, PromptEvent, TokenEvent
from api.logprobs import LogprobFormatter
from api.reasoning.formats import ReasoningParser
from api.sse import event_stream
from api.text.tokenizing import TextCodec
from engine.grammars.checking import GrammarChecker
from engine.request import FinishReason, Logprob, Request
from tests.fakes.asking import chat
from tests.fakes.http import Client, Json, Said
from tests.fakes.text import (
    EOS,
    TEMPLATE,
    FakeDoor,
    byte_level,
    says,
    served,
)
from tests.fakes.tools import TOOLS, special
from tests.unit.test_tapping import Outlet, Tapping

PLAIN = byte_level()
OPEN = byte_level(TEMPLATE + "{% if enable_thinking != false %}<think>\n{% endif %}")
GRAMMARS = GrammarChecker()
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
THOUGHT = "<think>\nHm. It is\n 4.\n</think>\n\nIt is 4."
CALL = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
FREE = {"type": "structural_tag", "format": {"type": "any_text"}}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
Heard = tuple[str | None, str | None, str | None]
"""Reasoning, content, and why the choice ended."""


def client(
    *texts: str,
    finish: FinishReason = STOP,
    codec: TextCodec = PLAIN,
    parser: ReasoningParser = "qwen3",
    burst: bool = False,
) -> Client:
    """Of a door that says one of these in each choice."""

    def script(request: Request, _: Leg) -> Sequence[Event]:
        tokens = codec.encode(texts[request.sampling.sample_index])
        tokens = (*tokens, EOS) if finish is STOP else tokens
        return [PromptEvent(0), TokenEvent(tokens, finish)] if burst else says(tokens, finish)

    door = replace(served(codec), reasoning_parser=parser, grammars=GRAMMARS)
    return Client(FakeDoor(script), door)


@pytest.fixture(autouse=True, scope="module")
def checked() -> Iterator[None]:
    """No process is left that checks grammars."""
    with GRAMMARS:
        yield


async def ask(door: Client, *, stream: bool = False, **fields: object) -> Said:
    asked: Json = {"max_tokens": 150, "stream": stream, **fields}
    said = await door.chat(**asked)
    assert said.status == 200, said.body
    return said


def heard(said: Said, index: int = 0) -> Heard:
    """Put together where there are deltas."""
    if "text/event-stream" not in said.headers["content-type"]:
        ChatCompletion.model_validate(said.json)
        choice = said.json["choices"][index]
        return *told(choice["message"]), choice["finish_reason"]
    return put_together(said.events, index)


def put_together(events: Sequence[Json], index: int = 0) -> Heard:
    reasoning: str | None = None
    content: str | None = None
    finish: str | None = None
    for event in events:
        ChatCompletionChunk.model_validate(event)
        for choice in event["choices"]:
            if choice["index"] == index:
                thought, text = told(choice["delta"])
                reasoning = (reasoning or "") + thought if thought else reasoning
                content = (content or "") + text if text else content
                finish = choice["finish_reason"] or finish
    return reasoning, content, finish


def told(message: Json) -> tuple[str | None, str | None]:
    """Under both of its names, and never with content in one delta; none of no letters."""
    thought, text = message.get("reasoning"), message.get("content")
    assert message.get("reasoning_content") == thought
    assert not (thought and text and "role" not in message)
    return thought, text or None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("burst", [False, True])
@pytest.mark.parametrize(
    ("text", "settings", "fields", "expected"),
    [
        (THOUGHT, {}, {}, ("Hm. It is\n 4.", "It is 4.", "stop")),
        (THOUGHT, {"parser": "auto"}, {}, (None, THOUGHT, "stop")),
        (THOUGHT, {"parser": "none"}, {}, (None, THOUGHT, "stop")),
        (THOUGHT, {}, OFF, ("Hm. It is\n 4.", "It is 4.", "stop")),
        ("It is 4.", {"parser": "deepseek_r1"}, OFF, (None, "It is 4.", "stop")),
        (THOUGHT, {}, {"include_reasoning": False}, (None, "It is 4.", "stop")),
        (THOUGHT, {}, {"stop": "4."}, ("Hm. It is\n ", None, "stop")),
        (THOUGHT, {}, {"stop": "s 4"}, ("Hm. It is\n 4.", "It i", "stop")),
        (THOUGHT, {"finish": LENGTH}, {}, ("Hm. It is\n 4.", "It is 4.", "length")),
        ("<think>Hm. </th", {"finish": LENGTH}, {}, ("Hm. </th", None, "length")),
        (
            *("<think>Hm.", {"finish": LENGTH}),
            *({"include_reasoning": False}, (None, None, "length")),
        ),
        ("It is 4.", {}, {}, (None, "It is 4.", "stop")),
        ("It is 4.", {"parser": "deepseek_r1"}, {}, ("It is 4.", None, "stop")),
        ("Hm.</think>4", {"parser": "deepseek_r1"}, {}, ("Hm.", "4", "stop")),
        ("Hm.</think>4", {"codec": OPEN}, {}, ("Hm.", "4", "stop")),
        ("4", {"codec": OPEN}, OFF, (None, "4", "stop")),
        ("Hm.</think>4", {"codec": OPEN, "parser": "auto"}, {}, ("Hm.", "4", "stop")),
        ("[THINK]Hm.[/THINK]4", {"parser": "mistral"}, {}, ("Hm.", "4", "stop")),
        (
            *('{"a": 4}', {"parser": "deepseek_r1"}),
            *({"response_format": {"type": "json_object"}}, (None, '{"a": 4}', "stop")),
        ),
        (
            *("ab</think>4", {"codec": OPEN}),
            *({"guided_regex": "[a-z]+</think>[0-9]"}, ("ab", "4", "stop")),
        ),
        ("ab</think>4", {"codec": OPEN}, {"structural_tag": FREE}, ("ab", "4", "stop")),
    ],
)
async def test_reasoning_is_told_apart_from_content(
    text: str,
    settings: dict[str, Any],
    fields: dict[str, Any],
    expected: Heard,
    stream: bool,
    burst: bool,
) -> None:
    door = client(text, **settings, burst=burst)
    assert heard(await ask(door, stream=stream, **fields)) == expected


async def test_a_broken_grammar_is_refused_before_it_is_read_for_marks() -> None:
    said = await client(THOUGHT).chat(structural_tag={"type": "structural_tag", "format": 1})
    assert (said.status, said.json["error"]["param"]) == (400, "structural_tag")


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_are_read_behind_the_reasoning_only(stream: bool) -> None:
    codec = byte_level(TEMPLATE + "<tool_call>")
    text = f"<think>I call {CALL}.</think>\n\n{CALL}"
    said = await ask(client(text, codec=codec), stream=stream, tools=TOOLS)
    assert heard(said) == (f"I call {CALL}.", None, "tool_calls")
    parts = [one["choices"][0] for one in (said.events if stream else [said.json])]
    calls = [part.get("delta", part.get("message")).get("tool_calls", []) for part in parts]
    names = [call["function"].get("name") for one in calls for call in one]
    assert [name for name in names if name] == ["clock"]


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_thinks_for_itself(stream: bool) -> None:
    said = await ask(client(THOUGHT, "No."), stream=stream, n=2)
    assert heard(said) == ("Hm. It is\n 4.", "It is 4.", "stop")
    assert heard(said, 1) == (None, "No.", "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_marks_that_are_special_tokens_are_read_and_others_are_not_said(
    stream: bool,
) -> None:
    codec = special("<think>", "</think>", "<|other|>")
    door = client(f"<|other|>{THOUGHT}", codec=codec)
    assert heard(await ask(door, stream=stream)) == ("Hm. It is\n 4.", "It is 4.", "stop")
    plain = client(f"<|other|>{THOUGHT}", codec=codec, parser="none")
    assert "<" not in (heard(await ask(plain, stream=stream))[1] or "")


@pytest.mark.parametrize("burst", [False, True])
@pytest.mark.parametrize(("text", "finish"), [(THOUGHT, STOP), ("<think>Hm. 4", LENGTH)])
async def test_tokens_of_reasoning_are_counted_with_its_marks(
    text: str, finish: FinishReason, burst: bool
) -> None:
    count = len(PLAIN.encode(text.partition("</think>")[0]))
    count += len(PLAIN.encode("</think>")) if finish is STOP else 0
    door = client(text, finish=finish, burst=burst)
    whole = await ask(door)
    assert whole.json["usage"]["completion_tokens_details"] == {"reasoning_tokens": count}
    options = {"include_usage": True, "continuous_usage_stats": True}
    said = await ask(door, stream=True, stream_options=options)
    usages = [event["usage"] for event in said.events]
    counts = [one["completion_tokens_details"]["reasoning_tokens"] for one in usages]
    assert (counts[0], counts[-1]) == (0, count)
    assert counts == sorted(counts)
    none = await ask(client(text, parser="none"))
    assert "completion_tokens_details" not in none.json["usage"]


async def test_an_answer_without_reasoning_has_no_tokens_of_it() -> None:
    said = await ask(client("It is 4."))
    assert said.json["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_every_token_is_told_once_beside_reasoning(stream: bool) -> None:
    tokens = PLAIN.encode(THOUGHT)
    odds = [TokenEvent((one,), logprobs=((Logprob(one, -1.0, 1),),)) for one in tokens]
    events: list[Event] = [PromptEvent(0), *odds, TokenEvent((EOS,), STOP)]
    model = replace(served(PLAIN), reasoning_parser="qwen3")
    door = Client(FakeDoor(lambda request, leg: events), model)
    said = await ask(door, stream=stream, logprobs=True, return_token_ids=True)
    choices = [one["choices"][0] for one in (said.events if stream else [said.json])]
    spelt = [
        entry["bytes"]
        for one in choices
        for entry in (one["logprobs"] or {"content": []})["content"]
    ]
    assert b"".join(map(bytes, spelt)).decode() == THOUGHT
    assert [id_ for one in choices for id_ in one.get("token_ids", [])] == [*tokens, EOS]
    assert heard(said) == ("Hm. It is\n 4.", "It is 4.", "stop")


@pytest.mark.parametrize(
    ("text", "fields", "content"),
    [("", {}, ""), ("<think>Hm.", {}, None), ("<think>Hm.", {"include_reasoning": False}, "")],
)
async def test_an_answer_without_a_word_is_a_text_as_of_other_models(
    text: str, fields: Json, content: str | None
) -> None:
    said = await ask(client(text), **fields)
    assert said.json["choices"][0]["message"]["content"] == content


async def test_a_template_is_shown_past_reasoning_by_the_name_it_looks_for() -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}{% endfor %}"
    door = served(byte_level(template))
    for name in ("reasoning", "reasoning_content"):
        past = {"role": "assistant", "content": "4", name: "Hm."}
        asked = await chat({"messages": [past]}, door=door)
        assert PLAIN.decode(asked.calls[0].request.prompt) == "Hm."


async def streamed(
    source: Tapping,
    outlet: Outlet | None,
    codec: TextCodec = PLAIN,
    parser: ReasoningParser = "qwen3",
) -> bytes:
    """What a client of a stream gets, be it of the stream or of its tap."""
    model = replace(served(codec), reasoning_parser=parser)
    asked = await chat({"stream": True}, door=model)
    form = ChatFormat(LogprobFormatter(codec.vocabulary), thinks=True)
    sent = outlet.sent if outlet else bytearray()
    async for said in event_stream(AnswerWriter(Answer(source, asked), form, 7), outlet):
        sent += said
    return bytes(sent)


async def test_what_follows_reasoning_goes_past_the_stream() -> None:
    thought, answer = PLAIN.encode("<think>\nHm.\n</think>\n\n"), PLAIN.encode("the sea. " * 9)
    plain = await streamed(Tapping(thought + answer), None)
    assert b'"reasoning_content":"m"' in plain
    assert b'"delta":{}' not in plain
    source = Tapping(thought + answer)
    assert await streamed(source, Outlet(bytearray())) == plain
    assert len(source.tapped) > len(answer) / 2
    assert tuple(source.tapped) == answer[-1 - len(source.tapped) : -1]
