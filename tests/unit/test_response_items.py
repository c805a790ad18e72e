"""The input of a response, item by item, becomes the messages of a chat."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from api.errors import BadRequest
from api.responses.bodies import read_responses
from api.responses.fields import RESPONSES
from api.responses.items import messages_of
from api.responses.to_chat import chat_of

Items = list[dict[str, Any]]
TOOL = {"type": "function", "name": "f"}
CUSTOM = {"type": "custom", "name": "f"}


def text(*said: str) -> Items:
    return [{"type": "text", "text": one} for one in said]


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {
        "id": f"c_{name}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def called(name: str) -> dict[str, Any]:
    own = {"id": "fc_1", "status": "completed"}
    return {
        "type": "function_call",
        "call_id": f"c_{name}",
        "name": name,
        "arguments": "{}",
        **own,
    }


def output(name: str, said: Any = "done") -> dict[str, Any]:  # noqa: ANN401
    return {"type": "function_call_output", "call_id": f"c_{name}", "output": said}


def thought(*said: str, summary: tuple[str, ...] = ()) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": one} for one in said] or None
    brief = [{"type": "summary_text", "text": one} for one in summary]
    return {"type": "reasoning", "id": "rs_1", "summary": brief, "content": content}


def message(said: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": said, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def assistant(said: str | None, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": None if said is None else text(said), **more}


USER = {"role": "user", "content": text("a")}
BACK = {"role": "tool", "tool_call_id": "c_f", "name": "f", "content": text("done")}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("a", [USER]),
        ([{"role": "user", "content": "a"}], [USER]),
        ([{"type": "message", "role": "user", "content": "a"}], [USER]),
        ([{"type": None, "role": "user", "content": "a"}], [USER]),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": one} for one in "ab"],
                }
            ],
            [{"role": "user", "content": text("a", "b")}],
        ),
        ([message("b")], [assistant("b")]),
        ([{"role": "assistant", "content": "b"}], [assistant("b")]),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
            [assistant("no")],
        ),
        ([message("b"), message("c")], [assistant("b"), assistant("c")]),
        ([called("f")], [assistant(None, tool_calls=[call("f")])]),
        (
            [message("b"), called("f"), called("g")],
            [assistant("b", tool_calls=[call("f"), call("g")])],
        ),
        (
            [message("b"), called("f"), message("c")],
            [{"role": "assistant", "content": text("b", "c"), "tool_calls": [call("f")]}],
        ),
        (
            [called("f"), output("f"), called("g")],
            [
                assistant(None, tool_calls=[call("f")]),
                BACK,
                assistant(None, tool_calls=[call("g")]),
            ],
        ),
        (
            [called("f"), output("f", [{"type": "input_text", "text": "done"}])],
            [assistant(None, tool_calls=[call("f")]), BACK],
        ),
        ([output("x")], [{"role": "tool", "tool_call_id": "c_x", "content": text("done")}]),
        ([thought("t", "u"), message("b")], [assistant("b", reasoning_content="t\nu")]),
        ([thought("t", summary=("s",)), message("b")], [assistant("b", reasoning_content="t")]),
        ([thought(summary=("s",)), message("b")], [assistant("b", reasoning_content="s")]),
        ([thought(), message("b")], [assistant("b")]),
        ([thought("t")], [assistant(None, reasoning_content="t")]),
        (
            [thought("t"), called("f"), thought("u"), called("g")],
            [assistant(None, reasoning_content="t\nu", tool_calls=[call("f"), call("g")])],
        ),
        (
            [thought("t"), message("b"), thought("u"), message("c")],
            [assistant("b", reasoning_content="t"), assistant("c", reasoning_content="u")],
        ),
        (
            [message("b"), thought("u"), called("f")],
            [assistant("b", reasoning_content="u", tool_calls=[call("f")])],
        ),
        (
            [message("b"), thought("u"), called("f"), thought("v"), called("g")],
            [assistant("b", reasoning_content="u\nv", tool_calls=[call("f"), call("g")])],
        ),
        (
            [
                {"role": "system", "content": "s"},
                message("b"),
                {"role": "system", "content": "t"},
            ],
            [
                {"role": "system", "content": text("s")},
                assistant("b"),
                {"role": "system", "content": text("t")},
            ],
        ),
        (
            [message("b"), thought("u"), {"role": "user", "content": "a"}],
            [assistant("b", reasoning_content="u"), USER],
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "developer", "content": "d"}],
            [USER, {"role": "system", "content": text("d")}],
        ),
    ],
)
def test_items_become_messages(items: Any, messages: Items) -> None:  # noqa: ANN401
    assert messages_of(items, None) == messages


def test_what_says_how_things_are_done_stands_first_as_one() -> None:
    items = [
        {"role": "developer", "content": "d"},
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "system", "content": "t"},
    ]
    first = {"role": "system", "content": text("i", "d", "s")}
    assert messages_of(items, "i") == [first, USER, {"role": "system", "content": text("t")}]


SPACE = {"type": "namespace", "name": "a", "tools": [TOOL]}


def refused(body: object) -> BadRequest:
    with pytest.raises(BadRequest) as told:
        chat_of(read_responses(msgspec.json.encode(body)))
    assert told.value.param is None or told.value.param in str(told.value)
    return told.value


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "villain", "content": "a"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 7}, "content"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "input_file", "file_id": "x"}]},
            "content[0].type",
        ),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
        (
            {"role": "user", "content": [{"type": "refusal", "refusal": 7}]},
            "content[0].refusal",
        ),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "arguments"),
        ({"type": "function_call", "call_id": "", "name": "f", "arguments": ""}, "call_id"),
        ({"type": "function_call_output", "call_id": "c"}, "output"),
        (output("f", [{"type": "input_image", "image_url": "x"}]), "output[0].type"),
        ({"type": "reasoning", "content": [{"text": 7}]}, "content"),
        ({"type": "item_reference", "id": "x"}, "type"),
        ({"id": "x"}, "type"),
        ({"type": None, "id": "x"}, "type"),
        ({"type": "web_search_call", "id": "x"}, "type"),
        ({"type": 7}, "type"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(item: object, param: str) -> None:
    error = refused({"input": [item]})
    assert str(error.param).startswith(f"input[0].{param}")


def test_an_item_without_type_and_role_is_told_what_it_lacks() -> None:
    assert "input[0].type is missing" in str(refused({"input": [{"content": "hi"}]}))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["a"]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"max_tokens": 7}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"moderation": {}}, "moderation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "mcp"}]}, "tools[1].type"),
        ({"tools": [{"type": "web_search"}, {"type": "mcp"}]}, "tools[1].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{**SPACE, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**SPACE, "tools": 7}]}, "tools[0].tools"),
        ({"tools": [{**SPACE, "tools": [TOOL, {}]}]}, "tools[0].tools[1].type"),
        ({"tools": [{**SPACE, "tools": [SPACE]}]}, "tools[0].tools[0].type"),
        ({"tools": [{**SPACE, "name": "a" * 127}]}, "tools[0].tools[0].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{**SPACE, "tools": [CUSTOM, {"type": "mcp"}]}]}, "tools[0].tools[1].type"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c"}]}, "input[0].name"),
        ({"input": [{"type": "custom_tool_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"include": ["x"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"a": 7}}, "metadata"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_a_wish_that_cannot_be_granted_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused({"input": "a", **fields})
    assert error.param == param


def test_what_is_asked_for_by_its_own_name_comes_first() -> None:
    fields = {"truncation": "auto", "truncate_prompt_tokens": 5, "tools": [], "top_logprobs": 0}
    chat = chat_of(read_responses(msgspec.json.encode({"input": "a", **fields})))
    assert (chat.truncate_prompt_tokens, chat.tools, chat.num_logprobs) == (5, None, None)


def test_who_keeps_nothing_says_what_to_do() -> None:
    said = str(refused({"input": "a", "previous_response_id": "resp_1"}))
    assert said.endswith("send the whole conversation as input")


def asked_for(body: Mapping[str, object]) -> dict[str, object]:
    """What the chat has that a body is; False and null are the same to it."""
    chat = chat_of(read_responses(msgspec.json.encode(body)))
    return {name: value for name, value in msgspec.structs.asdict(chat).items() if value}


@pytest.mark.parametrize("name", RESPONSES)
def test_null_asks_for_nothing(name: str) -> None:
    bare, said = {"input": "a"}, {"input": "a", name: None}
    assert asked_for(said) == asked_for(bare)
