"""What /v1/responses asks of a model, and what it says where there is no answer."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from openai.types.responses import InputTokenCountResponse

from api.generator import Event, Leg, PromptEvent, StreamFailed, TokenEvent
from engine.grammars.checking import GrammarChecker
from engine.request import Request
from tests.fakes.http import Client, Json, Said
from tests.fakes.responses import (
    CALL,
    CODEC,
    ITEMS,
    PATH,
    TOOLS,
    ask,
    events_of,
    heard,
    response_of,
    summary,
)
from tests.fakes.text import TEMPLATE, FakeDoor, byte_level, saying, served

GRAMMARS = GrammarChecker()
BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(autouse=True, scope="module")
def checked() -> Iterator[None]:
    """No process is left that checks grammars."""
    with GRAMMARS:
        yield


async def asked_of(**fields: Json) -> Request:
    generator = saying("the")
    said = await ask(Client(generator, replace(served(), grammars=GRAMMARS)), **fields)
    assert said.status == 200, said.body
    return generator.request


async def prompt_of(**fields: Json) -> str:
    return byte_level().decode((await asked_of(**fields)).prompt)


async def test_settings_reach_the_model() -> None:
    sampling = (await asked_of(max_output_tokens=7, temperature=0, top_p=0.5, seed=3)).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0, 0.5)
    assert sampling.seed == 3
    assert (await asked_of(top_k=5, min_p=0.1, ignore_eos=True)).sampling.top_k == 5
    assert (await asked_of(prompt_cache_key="k", user="u")).session == "k"
    assert (await asked_of(prompt_cache_key="k", session_id="s")).session == "s"
    assert (await asked_of(user="u")).session == "u"
    include = ["message.output_text.logprobs"]
    assert (await asked_of(include=include, top_logprobs=2)).sampling.logprobs == 2
    assert (await asked_of(include=include)).sampling.logprobs == 0
    assert (await asked_of(include=["reasoning.encrypted_content"])).sampling.logprobs is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, "json_object"),
        (
            {"format": {"type": "json_schema", "name": "a", "schema": {"type": "null"}}},
            "json_schema",
        ),
    ],
)
async def test_a_format_holds_the_answer(text: Json, kind: str | None) -> None:
    grammar = (await asked_of(text=text)).sampling.grammar
    assert (grammar and grammar.kind) == kind


async def test_effort_is_told_to_the_template() -> None:
    template = TEMPLATE + "{{ reasoning_effort }}{{ enable_thinking }}"
    for effort, told in (("low", "lowTrue"), ("none", "noneFalse")):
        generator = saying("the")
        fields: Json = {"reasoning": {"effort": effort, "summary": "auto"}}
        await heard(Client(generator, served(byte_level(template))), **fields)
        assert byte_level().decode(generator.request.prompt).endswith(told)


async def test_what_does_not_fit_is_cut_where_that_is_wanted() -> None:
    long = "the sea " * 300
    refused = await ask(Client(saying("the")), input=long)
    assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")
    request = await asked_of(input=long, truncation="auto", max_output_tokens=5)
    assert len(request.prompt) == 195
    assert byte_level().decode(request.prompt).endswith("the sea <|assistant|>")


async def test_tools_reach_the_template_as_those_of_chats_do() -> None:
    generator = saying("the")
    template = TEMPLATE + "{{ tools | tojson }}{{ colour }}"
    fields: Json = {"tools": TOOLS, "chat_template_kwargs": {"colour": "blue"}}
    door = Client(generator, served(byte_level(template + "{# <tool_call> #}"), context=999))
    await heard(door, **fields)
    response = generator.asked.pop()[0].prompt
    nested: Json = [
        {"type": "function", "function": {k: v for k, v in one.items() if k != "type"}}
        for one in TOOLS
    ]
    await door.chat(**{**fields, "tools": nested})
    assert byte_level().decode(generator.request.prompt) == byte_level().decode(response)
    assert byte_level().decode(response).endswith("blue")


async def test_a_refusal_is_told_by_the_names_of_fields_here() -> None:
    wrong = {"type": "function", "name": "f", "parameters": {"type": "array"}}
    impossible = {"properties": {"a": {"type": "string", "pattern": "("}}}
    strict = {"type": "function", "name": "f", "strict": True, "parameters": impossible}
    door = Client(saying("the"), replace(served(CODEC), grammars=GRAMMARS))
    for fields, param in (
        ({"tools": [wrong]}, "tools[0].parameters"),
        ({"max_output_tokens": 900}, "max_output_tokens"),
        (
            {"tools": [strict], "text": {"format": {"type": "json_object"}}},
            "tools[0].parameters",
        ),
    ):
        asked: Json = fields
        error = (await ask(door, **asked)).json["error"]
        assert error["param"] == param
        assert "function." not in error["message"]


async def test_headers_say_what_a_body_leaves_open() -> None:
    generator = saying("the")
    headers = {"X-Session-Id": "mine", "X-Vllm-Priority": "-3"}
    await Client(generator).post(PATH, headers, input="hi", prompt_cache_key="k")
    assert (generator.request.session, generator.request.priority) == ("mine", -3)


@BOTH
async def test_a_failure_before_the_first_byte_has_a_status(stream: bool) -> None:
    broken = Client(FakeDoor(lambda request, leg: [PromptEvent(0), StreamFailed("no luck")]))
    said = await ask(broken, stream=stream)
    assert said.status == 502
    assert said.json["error"]["message"] == "no luck"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the sea", [("message", "the sea")]),
        ("<think>Hm.", [("reasoning", "Hm.")]),
        (f"Hm. {CALL[:-20]}", [("message", "Hm."), ("function_call", "weather", '{"city"')]),
    ],
)
async def test_a_failure_later_ends_the_stream_with_what_there_is(
    text: str, expected: list[tuple[str, ...]]
) -> None:
    tokens = CODEC.encode(text)
    events: list[Any] = [
        PromptEvent(0),
        *(TokenEvent((one,)) for one in tokens),
        StreamFailed("no luck"),
    ]
    model = replace(served(CODEC), reasoning_parser="qwen3")
    said = await ask(
        Client(FakeDoor(lambda request, leg: events), model), stream=True, tools=TOOLS
    )
    response = response_of(events_of(said.body))
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "no luck"}
    assert response["incomplete_details"] is None
    *whole, last = summary(response)
    assert last[: len(expected[-1]) - 1] == expected[-1][:-1]
    assert last[-1].startswith(expected[-1][-1])
    assert whole == expected[:-1]
    assert response["output"][-1]["status"] == "incomplete"
    assert "[DONE]" not in said.body


async def test_a_mistake_of_ours_is_told_without_its_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def script(_: Request, __: Leg) -> Iterator[Event]:
        yield PromptEvent(0)
        yield TokenEvent(tuple(CODEC.encode("the")))
        raise ZeroDivisionError

    broken: Any = script
    said = await ask(Client(FakeDoor(broken)), stream=True)
    response = response_of(events_of(said.body))
    assert response["error"] == {
        "code": "server_error",
        "message": "The server made a mistake.",
    }
    assert "broke off" in caplog.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{PATH}/resp_7"),
        ("DELETE", f"{PATH}/resp_7"),
        ("POST", f"{PATH}/resp_7/cancel"),
        ("GET", f"{PATH}/resp_7/input_items"),
    ],
)
async def test_nothing_is_stored(method: str, path: str) -> None:
    said = await Client(saying("the")).ask(method, path)
    assert said.status == 404
    error = said.json["error"]
    assert error["message"] == "There is no response 'resp_7' here: none is kept"
    assert error["type"] == "invalid_request_error"


async def test_nothing_is_compacted() -> None:
    said = await Client(saying("the")).ask("POST", f"{PATH}/compact", b"{}")
    assert said.status == 404
    assert "truncation" in said.json["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi"},
        {"input": [{"role": "user", "content": "hi " * 900}], "instructions": "Be short."},
        {"input": "hi", "tools": TOOLS, "reasoning": {"effort": "high"}},
        {"input": "hi", "tools": TOOLS, "tool_choice": "required"},
    ],
)
async def test_tokens_are_counted_as_the_response_itself_would_have_them(fields: Json) -> None:
    template = TEMPLATE + "{{ tools | tojson if tools }}{{ reasoning_effort }}<tool_call>"
    model = replace(served(byte_level(template), context=5_000), grammars=GRAMMARS)
    generator = saying("the")
    door = Client(generator, model)
    response = await ask(door, **fields)
    asked = await count(door, **fields)
    counted = InputTokenCountResponse.model_validate(asked.json, strict=True)
    assert counted.input_tokens == response.json["usage"]["input_tokens"]
    assert counted.input_tokens == len(generator.request.prompt)


async def test_what_does_not_fit_is_counted_too_and_nobody_is_asked() -> None:
    generator = saying("the")
    door = Client(generator, served(context=10))
    long = {"input": "the cat " * 2_000, "truncation": "auto"}
    assert (await count(door, **long)).json["input_tokens"] > 3_000
    assert not generator.asked
    refused = await count(door, input=[])
    assert refused.status == 400
    assert refused.json["error"]["param"] == "input"
    assert (await count(door, input="hi", previous_response_id="resp_1")).status == 400
    assert (await count(door, input="hi", model="gpt-9")).status == 404


async def count(door: Client, **fields: Json) -> Said:
    body = msgspec.json.encode(fields)
    return await door.ask("POST", f"{PATH}/input_tokens", body)


async def test_a_loop_with_tools_goes_on_with_what_came_back() -> None:
    """As a client does that keeps its own history: output goes into the next input as it is."""
    model = replace(served(CODEC), reasoning_parser="qwen3")
    thinks = saying(f"<think>Hm.</think>I look. {CALL}", CODEC)
    first = await heard(Client(thinks, model), tools=TOOLS)
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    history = [
        {"role": "user", "content": "Paris?"},
        *first["output"],
        {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"},
    ]
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.reasoning_content }}|{{ m.content }}|"
        "{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments.city }} "
        "{{ c.id == messages[-1].tool_call_id }}{% endfor %}{{ m.name }}{% endfor %}"
    )
    generator = saying("the")
    await heard(Client(generator, served(byte_level(template))), input=history)
    assert byte_level().decode(generator.request.prompt) == (
        "<|user|>|Paris?|<|assistant|>Hm.|I look.|weather Paris True<|tool|>|rain|weather"
    )


async def test_items_and_messages_ask_the_same() -> None:
    generator = saying("the")
    messages = [{"role": "system", "content": "be short"}, *ITEMS]
    await Client(generator, served()).chat(messages=messages)
    assert await prompt_of(input=ITEMS, instructions="be short") == byte_level().decode(
        generator.request.prompt
    )
