"""Converts a body of POST /v1/messages into the equivalent chat."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from api.bodies import ChatBody, convert
from api.error_fields import ErrorFieldNames
from api.errors import ApiError, BadRequest, ContextTooLong
from api.messages.blocks import messages_of
from api.messages.bodies import (
    SHARED,
    CountBody,
    CustomTool,
    OutputConfig,
    ToolChoice,
)
from api.reasoning.switches import SWITCHES
from api.tools.tool_choice import NamedTool, ToolChoiceMode, ToolName
from api.tools.tool_choice import ToolChoice as ChatToolChoice

CUSTOM = (None, "custom")
CHOICES: Mapping[str, ToolChoiceMode] = {"auto": "auto", "any": "required", "none": "none"}
FIELD_NAMES = ErrorFieldNames(
    names=(
        (re.compile(r"^(tools\[\d+\])\.function\.parameters\b"), r"\1.input_schema"),
        (re.compile(r"^(tools\[\d+\]|tool_choice)\.function\b"), r"\1"),
        (re.compile(r"^response_format(\.json_schema)?\b"), "output_config.format"),
        (re.compile(r"^reasoning_effort\b"), "output_config.effort"),
        (re.compile(r"^stop$"), "stop_sequences"),
    ),
    in_passing=(
        (re.compile(r"(?<![\w`])response_format\b"), "output_config.format"),
        (re.compile(r'"required", a function, or "none"'), '"any", "tool" or "none"'),
    ),
)


class MessagesChat(ChatBody, frozen=True, kw_only=True):
    """A chat whose `max_tokens` have the meaning that they have in messages."""

    @property
    def clamps_max_tokens(self) -> bool:
        """Always: clients that do not know the model send a large number as a limit."""
        return True

    @property
    def only_echo(self) -> bool:
        """With `max_tokens` 0 the prompt is only run, for the sake of later requests."""
        return self.max_tokens == 0


def chat_of(body: CountBody) -> MessagesChat:
    """The request as a chat; raises BadRequest."""
    messages = messages_of(body.messages, body.system)
    config, thinking = body.output_config or OutputConfig(), body.thinking
    thinks = thinking is None or thinking.type != "disabled"
    switches = {} if thinking is None else dict.fromkeys(SWITCHES, thinks)
    goes_on = _continues(messages[-1])
    own = {
        "messages": messages,
        "tools": _tools(body.tools or ()) or None,
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": not (
            body.tool_choice and body.tool_choice.disable_parallel_tool_use
        ),
        "response_format": _format(body, config),
        "reasoning_effort": config.effort,
        "include_reasoning": thinks and body.include_reasoning,
        "chat_template_kwargs": {**switches, **(body.chat_template_kwargs or {})} or None,
        "session_id": body.session_id or (body.metadata and body.metadata.user_id),
        "stop": body.stop_sequences,
        "add_generation_prompt": not goes_on,
        "continue_final_message": goes_on,
    }
    return MessagesChat(**{**{name: getattr(body, name) for name in SHARED}, **own})


def error_for_messages(error: ApiError) -> ApiError:
    """A chat's error with the field names of messages. A prompt that is too long is reported in
    Anthropic's words, from which clients know that they have to shorten the conversation.
    """
    if isinstance(error, ContextTooLong) and error.context is not None:
        prompt = error.prompt or f"more than {2 * error.context}"
        return ContextTooLong(
            f"prompt is too long: {prompt} tokens > {error.context} maximum", "messages"
        )
    return FIELD_NAMES.translate(error)


def _continues(last: Mapping[str, Any]) -> bool:
    """Whether the answer continues the assistant's last message."""
    return bool(last["role"] == "assistant" and last["content"] and "tool_calls" not in last)


def _tools(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools as a chat has them."""
    return [_tool(one, f"tools[{index}]") for index, one in enumerate(given)]


def _tool(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    kind = given.get("type")
    if isinstance(kind, str) and kind not in CUSTOM:
        why = (
            f"{path}.type: nobody runs tools of type {kind} here or knows what goes into them, "
            "only clients run theirs: say name and input_schema"
        )
        raise BadRequest(why, f"{path}.type")
    tool = convert(given, CustomTool, path)
    told = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    function = {name: value for name, value in told.items() if value is not None}
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice | None) -> ChatToolChoice | None:
    if choice is None:
        return None
    if choice.type != "tool":
        return CHOICES[choice.type]
    if choice.name is None:
        raise BadRequest("tool_choice.name is missing", "tool_choice.name")
    return NamedTool(ToolName(choice.name))


def _format(body: CountBody, config: OutputConfig) -> dict[str, Any] | None:
    """The output format, from the field's current name or from its former one."""
    if (given := config.format or body.output_format) is None:
        return None
    return {"type": given.type, "json_schema": {"schema": given.schema}}
