"""What a chat's body means, and what it must not say."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from api.errors import ApiError, BadRequest
from api.reasoning.switches import with_thinking_switch
from api.sampling import MAX_TOKENS_UNKNOWN
from tests.fakes.asking import HI, Fields, chat, texts
from tests.fakes.text import byte_level, served


async def test_a_chat_may_fill_the_context() -> None:
    for context in (200, 20_000):
        request = (await chat(context=context)).calls[0].request
        assert request.sampling.max_tokens == context - len(request.prompt)
    unknown = await chat(context=None)
    assert unknown.calls[0].request.sampling.max_tokens == MAX_TOKENS_UNKNOWN


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (HI, "<|user|>hi<|assistant|>"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            "<|user|>a<|assistant|>",
        ),
        (
            [{"role": "system", "content": "s"}, {"role": "assistant", "content": None}],
            "<|system|>s<|assistant|><|assistant|>",
        ),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, *HI],
            "<|assistant|>no<|user|>hi<|assistant|>",
        ),
        (
            [{"role": "tool", "tool_call_id": "c", "content": None}],
            "<|tool|><|assistant|>",
        ),
    ],
)
async def test_messages_become_what_the_template_makes_of_them(
    messages: object, expected: str
) -> None:
    assert texts(await chat({"messages": messages})) == [expected]


async def test_parts_of_a_message_are_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = await chat({"messages": [{"role": "user", "content": parts}]})
    assert texts(asked) == ["<|user|>a\nb<|assistant|>"]


async def test_the_template_hears_what_the_client_says() -> None:
    asked = await chat({"chat_template_kwargs": {"style": "short "}})
    assert texts(asked) == ["<|user|>hi<|assistant|>short "]
    asked = await chat({"add_generation_prompt": False, "continue_final_message": True})
    assert texts(asked) == ["<|user|>hi"]


async def test_the_template_has_the_documents() -> None:
    template = "{% for one in documents or [] %}{{ one.title }}: {{ one.text }};{% endfor %}?"
    found = [{"title": "a", "text": "b"}, {"title": "c", "text": "d"}]
    for documents, expected in ((found, "a: b;c: d;?"), ([], "?"), (None, "?")):
        asked = await chat({"documents": documents}, door=served(byte_level(template)))
        assert texts(asked) == [expected]


EFFORTS = "{{ reasoning_effort is defined }} {{ reasoning_effort }} {{ enable_thinking }}"
SWITCHED = {"enable_thinking": True, "reasoning_effort": "high"}


@pytest.mark.parametrize(
    ("effort", "kwargs", "expected"),
    [
        (None, None, "False  "),
        (None, {"reasoning_effort": "mine"}, "True mine "),
        ("none", None, "True none False"),
        ("minimal", {}, "True minimal True"),
        ("xhigh", {"enable_thinking": False}, "True xhigh False"),
        ("max", None, "True max True"),
        ("none", SWITCHED, "True none True"),
    ],
)
async def test_the_template_hears_of_the_effort_and_whether_to_think(
    effort: str | None, kwargs: Fields | None, expected: str
) -> None:
    """As vLLM has it: the field before the variable, and the client's own switch first."""
    fields = {"reasoning_effort": effort, "chat_template_kwargs": kwargs}
    assert texts(await chat(fields, door=served(byte_level(EFFORTS)))) == [expected]


THINKING = (
    "{%- if not thinking is defined %}{% set thinking = false %}{% endif %}{{ thinking }}"
)
OTHER = (
    "{{ messages[0].thinking or 'no thinking' }}{# thinking #} {{ thinking_mode is defined }}"
)


@pytest.mark.parametrize(
    ("template", "effort", "kwargs", "expected"),
    [
        (THINKING, None, None, "False"),
        (THINKING, "low", None, "True"),
        (THINKING, "none", None, "False"),
        (THINKING, "high", {"thinking": False}, "False"),
        (THINKING, None, {"enable_thinking": True}, "True"),
        (THINKING, "none", {"enable_thinking": True}, "True"),
        (THINKING, None, {"enable_thinking": "x", "thinking": None}, "None"),
        (THINKING, None, {"enable_thinking": "x"}, "False"),
        ("{{ enable_thinking }}", None, {"thinking": True}, "True"),
        (OTHER + "{{ enable_thinking }}", "low", {"enable_thinking": 1}, "no thinking False1"),
    ],
)
async def test_the_switch_has_the_name_that_the_template_asks_for(
    template: str, effort: str | None, kwargs: Fields | None, expected: str
) -> None:
    fields = {"reasoning_effort": effort, "chat_template_kwargs": kwargs}
    assert texts(await chat(fields, door=served(byte_level(template)))) == [expected]


def test_a_word_of_that_name_is_no_switch() -> None:
    for template in (THINKING, "{{ thinking }}", "{% if thinking %}"):
        assert with_thinking_switch({}, template, on=True) == {
            "enable_thinking": True,
            "thinking": True,
        }
    for template in (OTHER, "thinking", "{{ m['thinking'] }}", '{{ "a \\" thinking" }}'):
        assert with_thinking_switch({}, template, on=True) == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "refusal"}]}]},
            "messages[0].content[0].refusal",
        ),
        ({"messages": [*HI, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"role": 5, "content": "a"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "villain", "content": "ha"}]}, "messages"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"reasoning_effort": "utmost"}, "reasoning_effort"),
        ({"reasoning_effort": True}, "reasoning_effort"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"echo": True}, "echo"),
        ({"documents": ["a"]}, "documents[0]"),
    ],
)
async def test_a_wrong_field_of_a_chat_is_named(fields: Fields, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        await chat(fields)
    assert refused.value.param == param


async def test_without_a_template_there_is_no_chat() -> None:
    with pytest.raises(ApiError, match="no chat template"):
        await chat(door=served(byte_level(None)))


async def test_tools_that_must_not_be_called_are_shown_to_the_template() -> None:
    template = (
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ messages[0].role }}"
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for given, text in ((tools, "fuser"), ([], "user"), (None, "user")):
        fields = {"tools": given, "tool_choice": "none"}
        asked = await chat(fields, door=served(byte_level(template)))
        assert texts(asked) == [text]


async def test_arguments_of_past_tool_calls_are_objects_for_the_template() -> None:
    template = "{% for m in messages %}{{ m.tool_calls[0].function.arguments.x }}{% endfor %}"
    call = {"id": "c", "function": {"name": "f", "arguments": '{"x": 42}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    asked = await chat({"messages": messages}, door=served(byte_level(template)))
    assert texts(asked) == ["42"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '(' + f.arguments + ')' }}", '({"x":  42})'),
        ("{{ '(' ~ f['arguments'] ~ ')' }}", '({"x":  42})'),
        ("{{ '(' + f['arguments']|tojson + ')' }}", '({"x": 42})'),
        ("{{ '(' ~ f.arguments.x ~ ')' }}", "(42)"),
        ("{{ '(' + f.arguments }})", '({"x":  42})'),
        ("{{- '(' ~ f['arguments'] -}})", '({"x":  42})'),
        ("{{ '(' + f.arguments | tojson }})", '({"x": 42})'),
        ("{{ '(' + f.arguments|string + ')' }}", '({"x":  42})'),
        ("{{ f['arguments'] | string }}", '{"x":  42}'),
        ("{% set arguments = f.arguments|tojson %}{{ '(' + arguments + ')' }}", '({"x": 42})'),
    ],
)
async def test_arguments_are_as_they_came_to_templates_that_add_them_to_a_text(
    template: str, expected: str
) -> None:
    before = "{% set f = messages[0].tool_calls[0].function %}"
    call = {"id": "c", "function": {"name": "f", "arguments": '{"x":  42}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    asked = await chat({"messages": messages}, door=served(byte_level(before + template)))
    assert texts(asked) == [expected]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([{"function": {"name": "f", "arguments": ""}}], "hi 0"),
        ([{"function": {"name": "f", "arguments": "no JSON"}}], "hi 7"),
        ([], "hi"),
        (None, "hi"),
    ],
)
async def test_a_tool_call_may_have_no_arguments_and_a_message_no_calls(
    calls: object, expected: str
) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% if 'tool_calls' in m %}"
        " {{ m.tool_calls[0].function.arguments|length }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "assistant", "content": "hi", "tool_calls": calls}]
    asked = await chat({"messages": messages}, door=served(byte_level(template)))
    assert texts(asked) == [expected]


async def test_what_takes_long_is_understood_in_a_thread() -> None:
    """Whatever makes it long: here it is many messages with nothing in them."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}" + "x"
    codec, threads = byte_level(template), list[str]()

    def encode(text: str, *, special_tokens: bool) -> tuple[int, ...]:
        threads.append(threading.current_thread().name)
        return codec.encode(text, special_tokens=special_tokens)

    own: Any = SimpleNamespace(
        render=codec.render,
        encode=encode,
        far_exceeds=codec.far_exceeds,
        tokenizer=codec.tokenizer,
    )
    for times in (1, 100):
        await chat({"messages": [{"role": "user", "content": ""}] * times}, door=served(own))
    short, long = threads
    assert short == threading.current_thread().name != long
