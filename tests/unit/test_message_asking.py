"""What a body of messages asks for is what a chat asks for, or is refused by its name."""

from collections.abc import Mapping

import msgspec
import pytest

from api.messages.bodies import read_count, read_messages
from api.messages.fields import MESSAGES
from api.messages.to_chat import MessagesChat, chat_of
from api.tools.tool_choice import NamedTool, ToolName
from tests.unit.test_message_blocks import (
    BODY,
    HI,
    Given,
    assistant,
    block,
    refused,
    thought,
    used,
)

TOOL: Given = {"name": "f", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "a"}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"system": 7}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"compaction": {}}, "compaction"),
        ({"stop": "a"}, "stop"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "type": 7}]}, "tools[0].type"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "some"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"metadata": {"user_id": 7}}, "metadata.user_id"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_a_wish_that_cannot_be_granted_is_named(fields: Given, param: str) -> None:
    assert refused({**BODY, **fields}).param == param


def test_a_limit_is_missed_by_messages_alone() -> None:
    assert refused({"messages": [HI]}).param == "max_tokens"
    assert read_count(msgspec.json.encode({"messages": [HI]})).max_tokens is None


def test_who_wants_a_conversation_kept_is_told_by_a_code() -> None:
    error = refused({**BODY, "thread": {"type": "create"}})
    assert error.code == "thread_unsupported_request"
    assert str(error).endswith("send all of it as messages")


def chat(**fields: object) -> MessagesChat:
    return chat_of(read_messages(msgspec.json.encode({**BODY, **fields})))


def asked_for(body: Mapping[str, object]) -> Given:
    """What the chat has that a body is; False and null are the same to it."""
    said = msgspec.structs.asdict(chat(**body))
    return {name: value for name, value in said.items() if value}


@pytest.mark.parametrize("name", [*MESSAGES, "thread", "tools", "thinking", "output_config"])
def test_null_asks_for_nothing(name: str) -> None:
    assert asked_for({name: None}) == asked_for({})


@pytest.mark.parametrize(
    "hints",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
        {"inference_geo": "us", "speed": "fast", "betas": ["x"], "service_tier": "auto"},
        {"fallbacks": "default", "diagnostics": {"previous_message_id": None}},
    ],
)
def test_hints_change_nothing(hints: Given) -> None:
    assert asked_for(hints) == asked_for({})


def test_tools_are_those_of_chats() -> None:
    given = {**TOOL, "description": "d", "strict": True, "cache_control": {}, "type": "custom"}
    [told] = chat(tools=[given]).tools or [{}]
    assert told == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {"type": "object"},
            "strict": True,
        },
    }


@pytest.mark.parametrize(
    ("choice", "told", "parallel"),
    [
        (None, None, True),
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "f"}, NamedTool(ToolName("f")), True),
    ],
)
def test_choices_are_those_of_chats(choice: object, told: object, parallel: bool) -> None:
    said = chat(tools=[TOOL], tool_choice=choice)
    assert (said.tool_choice, said.parallel_tool_calls) == (told, parallel)


@pytest.mark.parametrize(
    ("thinking", "switches", "told"),
    [
        (None, None, True),
        ({"type": "enabled", "budget_tokens": 1024}, True, True),
        ({"type": "adaptive", "display": "omitted"}, True, True),
        ({"type": "between_tools"}, True, True),
        ({"type": "disabled"}, False, False),
    ],
)
def test_thinking_is_told_to_the_template(
    thinking: object, switches: bool | None, told: bool
) -> None:
    said = chat(thinking=thinking)
    names = ("enable_thinking", "thinking")
    expected = None if switches is None else dict.fromkeys(names, switches)
    assert said.chat_template_kwargs == expected
    assert said.include_reasoning is told
    own = chat(thinking=thinking, chat_template_kwargs={"thinking": "x"}).chat_template_kwargs
    assert (own or {})["thinking"] == "x"


@pytest.mark.parametrize("effort", ["low", "medium", "high", "xhigh", "max"])
def test_effort_is_that_of_chats(effort: str) -> None:
    assert chat(output_config={"effort": effort}).reasoning_effort == effort


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_a_form_is_that_of_chats(name: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "null"}}
    given = {"format": form} if name == "output_config" else form
    told = {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}
    assert chat(**{name: given}).response_format == told


def test_who_asks_is_the_session() -> None:
    assert chat(metadata={"user_id": "u"}).session == "u"
    assert chat(metadata={"user_id": "u"}, session_id="s").session == "s"


@pytest.mark.parametrize(
    ("last", "goes_on"),
    [
        (assistant(block("b")), True),
        ({"role": "assistant", "content": "b"}, True),
        (assistant(thought("t")), False),
        (assistant(block("b"), used("f")), False),
        (HI, False),
    ],
)
def test_an_answer_goes_on_with_what_the_assistant_said_last(
    last: Given, goes_on: bool
) -> None:
    said = chat(messages=[HI, last])
    assert (said.continue_final_message, said.add_generation_prompt) == (goes_on, not goes_on)
