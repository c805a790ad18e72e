"""POST /v1/messages over HTTP: what is said comes in Anthropic's blocks, streamed and not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from api.generator import Event, Leg, PromptEvent, StreamFailed, TokenEvent
from api.reasoning.formats import ReasoningParser
from engine.grammars.checking import GrammarChecker
from engine.request import FinishReason, Request
from tests.fakes.http import Client, Json
from tests.fakes.messages import (
    CALL,
    CLOCK,
    CODEC,
    PARIS,
    TOOLS,
    ask,
    failure_of,
    heard,
    refused,
    summary,
)
from tests.fakes.text import EOS, FakeDoor, byte_level, saying, says, served

GRAMMARS = GrammarChecker()
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
THOUGHT = "<think>\nHm. It is\n 4.\n</think>\n\nIt is 4."
IN_PARIS = ("tool_use", "weather", {"city": "Paris"})
BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(autouse=True, scope="module")
def checked() -> Iterator[None]:
    """No process is left that checks grammars."""
    with GRAMMARS:
        yield


def door(
    text: str,
    finish: FinishReason = STOP,
    *,
    burst: bool = False,
    cached: int = 0,
    parser: ReasoningParser = "qwen3",
    context: int | None = 999,
) -> Client:
    """It says this, a token at a time or all at once."""
    tokens = [*CODEC.encode(text), *([EOS] if finish is STOP else ())]

    def script(_: Request, __: Leg) -> Sequence[Event]:
        if burst:
            return [PromptEvent(cached), TokenEvent(tuple(tokens), finish)]
        return says(tokens, finish, cached=cached)

    model = replace(served(CODEC, context=context), reasoning_parser=parser, grammars=GRAMMARS)
    return Client(FakeDoor(script), model)


@BOTH
@pytest.mark.parametrize("burst", [False, True])
@pytest.mark.parametrize(
    ("text", "fields", "expected", "reason"),
    [
        ("the sea", {}, [("text", "the sea")], "end_turn"),
        ("", {}, [], "end_turn"),
        (CALL, {"tools": TOOLS}, [IN_PARIS], "tool_use"),
        (
            f"Hm.\n{CALL}\n{CLOCK}",
            {"tools": TOOLS},
            [("text", "Hm."), IN_PARIS, ("tool_use", "clock", {})],
            "tool_use",
        ),
        (
            f"{CALL} the sea",
            {"tools": TOOLS},
            [IN_PARIS, ("text", " the sea")],
            "tool_use",
        ),
        (
            f"{CALL[: CALL.index('Par')]}",
            {"tools": TOOLS},
            [("tool_use", "weather", {})],
            "end_turn",
        ),
        (CALL, {"tools": TOOLS, "tool_choice": {"type": "none"}}, [("text", CALL)], "end_turn"),
        (
            PARIS,
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}},
            [IN_PARIS],
            "tool_use",
        ),
        (
            f'[{{"name": "weather", "parameters": {PARIS}}}]',
            {"tools": TOOLS, "tool_choice": {"type": "any"}},
            [IN_PARIS],
            "tool_use",
        ),
        (
            f"{CALL}{CLOCK}",
            {
                "tools": TOOLS,
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
            [IN_PARIS],
            "tool_use",
        ),
        (THOUGHT, {}, [("thinking", "Hm. It is\n 4."), ("text", "It is 4.")], "end_turn"),
        (
            f"<think>Hm.</think>{CALL}",
            {"tools": TOOLS, "thinking": {"type": "adaptive"}},
            [("thinking", "Hm."), IN_PARIS],
            "tool_use",
        ),
        (THOUGHT, {"include_reasoning": False}, [("text", "It is 4.")], "end_turn"),
        (THOUGHT, {"thinking": {"type": "disabled"}}, [("text", "It is 4.")], "end_turn"),
        ("<think>Hm.</think>", {}, [("thinking", "Hm.")], "end_turn"),
        (
            THOUGHT,
            {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}},
            [("thinking", ""), ("text", "It is 4.")],
            "end_turn",
        ),
    ],
)
async def test_what_is_said_comes_in_blocks(
    text: str, fields: Json, expected: list[Any], reason: str, burst: bool, stream: bool
) -> None:
    message = await heard(door(text, burst=burst), stream=stream, **fields)
    assert summary(message) == expected
    assert message["stop_reason"] == reason
    assert message["model"] == "tiny"


@BOTH
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the sea", ("text", "the sea")),
        ("<think>Hm.", ("thinking", "Hm.")),
        (CALL[: CALL.index("Par")], ("tool_use", "weather", {})),
        (CALL, IN_PARIS),
    ],
)
async def test_an_answer_that_is_cut_says_so(
    text: str, expected: tuple[Any, ...], stream: bool
) -> None:
    message = await heard(door(text, LENGTH), stream=stream, tools=TOOLS)
    assert summary(message) == [expected]
    assert message["stop_reason"] == "max_tokens"


@BOTH
async def test_a_limit_may_be_larger_than_the_room_that_there_is(stream: bool) -> None:
    generator = FakeDoor(lambda request, leg: says(CODEC.encode("the sea"), LENGTH))
    client = Client(generator, served(CODEC, context=60))
    message = await heard(client, stream=stream, max_tokens=32_000)
    assert message["stop_reason"] == "model_context_window_exceeded"
    request = generator.request
    assert request.sampling.max_tokens == 60 - len(request.prompt)


@BOTH
@pytest.mark.parametrize("text", ["the sea, and the dog", "<think>the</think>sea, and"])
async def test_a_stop_sequence_is_named_and_not_said(text: str, stream: bool) -> None:
    message = await heard(door(text), stream=stream, stop_sequences=["🦊", ", and"])
    assert message["stop_reason"] == "stop_sequence"
    assert message["stop_sequence"] == ", and"
    assert message["content"][-1]["text"].endswith("sea")


@BOTH
async def test_usage_is_in_the_words_of_messages(stream: bool) -> None:
    prompt = len(CODEC.encode("<|user|>hi<|assistant|><tool_call>"))
    usage = (await heard(door(THOUGHT, cached=3), stream=stream))["usage"]
    said = len(CODEC.encode(THOUGHT)) + 1
    thought = usage["output_tokens_details"].pop("thinking_tokens")
    assert 0 < thought < said
    assert usage == {
        "input_tokens": prompt - 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": said,
        "output_tokens_details": {},
        "service_tier": "standard",
    }


@BOTH
async def test_with_no_tokens_a_prompt_is_run_and_nothing_said(stream: bool) -> None:
    message = await heard(door("the sea", LENGTH), stream=stream, max_tokens=0)
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["output_tokens"] == 0


async def test_a_message_has_the_name_of_its_request() -> None:
    said = await ask(door("the"), request_id="mine")
    assert said.json["id"] == "msg_mine"
    headers = {name.lower(): value for name, value in said.headers.items()}
    assert headers["request-id"] == headers["x-request-id"] == "mine"


@BOTH
async def test_a_failure_before_the_first_byte_has_a_status(stream: bool) -> None:
    broken = Client(FakeDoor(lambda request, leg: [PromptEvent(0), StreamFailed("no luck")]))
    said = await ask(broken, stream=stream, request_id="mine")
    assert said.status == 502
    assert refused(said.json) == {"type": "api_error", "message": "no luck"}
    assert said.json["request_id"] == "mine"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the sea", [("text", "the sea")]),
        ("<think>Hm.", [("thinking", "Hm.")]),
        (f"Hm. {CALL[:-20]}", [("text", "Hm."), ("tool_use", "weather", {})]),
    ],
)
async def test_a_failure_later_ends_the_stream_with_an_error(
    text: str, expected: list[Any]
) -> None:
    events: list[Any] = [
        PromptEvent(0),
        *(TokenEvent((one,)) for one in CODEC.encode(text)),
        StreamFailed("no luck"),
    ]
    model = replace(served(CODEC, context=999), reasoning_parser="qwen3")
    client = Client(FakeDoor(lambda request, leg: events), model)
    said = await ask(client, stream=True, tools=TOOLS, request_id="mine")
    blocks, error = failure_of(said.body)
    assert error == {"type": "api_error", "message": "no luck"}
    *whole, last = summary({"content": blocks})
    assert whole == expected[:-1]
    assert last[0] == expected[-1][0]
    assert expected[-1][1].startswith(last[1])
    assert "message_stop" not in said.body
    assert '"request_id":"mine"' in said.body


async def test_a_mistake_of_ours_is_told_without_its_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def script(_: Request, __: Leg) -> Iterator[Event]:
        yield PromptEvent(0)
        yield TokenEvent(tuple(CODEC.encode("the")))
        raise ZeroDivisionError

    broken: Any = script
    said = await ask(Client(FakeDoor(broken)), stream=True)
    _, error = failure_of(said.body)
    assert error == {"type": "api_error", "message": "The server made a mistake."}
    assert "broke off" in caplog.text


async def test_a_loop_with_tools_goes_on_with_what_came_back() -> None:
    """As a client does that keeps its history: content goes into the next request as it is."""
    first = await heard(door(f"<think>Hm.</think>I look. {CALL}"), tools=TOOLS)
    [call] = [block for block in first["content"] if block["type"] == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "rain"}
    history = [
        {"role": "user", "content": "Paris?"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
    ]
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.reasoning_content }}|{{ m.content }}|"
        "{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments.city }} "
        "{{ c.id == messages[2].tool_call_id }}{% endfor %}{{ m.name }}{% endfor %}"
    )
    generator = saying("the")
    await heard(Client(generator, served(byte_level(template))), messages=history)
    assert byte_level().decode(generator.request.prompt) == (
        "<|user|>|Paris?|<|assistant|>Hm.|I look.|weather Paris True"
        "<|tool|>|rain|weather<|user|>|so?|"
    )
