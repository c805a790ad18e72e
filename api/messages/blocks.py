"""Converts the messages of a body, block by block, and its `system` into a chat's messages.

A client may send `content` back just as it got it. Consecutive messages of one role become one,
as at Anthropic, and tool results come before the user's text beside them. Many chat templates
know a system message only at the start: later ones are added to the user's text, or to a tool
result where that came last.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.bodies import convert
from api.conversation import Conversation, JsonObject
from api.errors import BadRequest
from api.messages.signatures import hidden_thinking_of

Given = Mapping[str, Any]
Blocks = str | list[dict[str, Any]]
Name = Annotated[str, Meta(min_length=1)]
BILLING_HEADER = "x-anthropic-billing-header"
"""The prefix of a block in which Claude Code sends billing data. The data differs in each
request, and would keep all text after it out of every prefix cache.
"""
ERROR_PREFIX = "Error:"


class InputMessage(msgspec.Struct, frozen=True):
    """A message in a body."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class TextBlockParam(msgspec.Struct, frozen=True):
    """A block of text."""

    text: str


class ThinkingBlockParam(msgspec.Struct, frozen=True):
    """A block of the model's reasoning."""

    thinking: str
    signature: str | None = None


class ToolUseBlockParam(msgspec.Struct, frozen=True):
    """A tool call that the model made."""

    id: Name
    name: Name
    input: dict[str, Any]


class ToolResultBlockParam(msgspec.Struct, frozen=True):
    """The result of a tool call."""

    tool_use_id: Name
    content: Blocks | None = None
    is_error: bool | None = None


class ToolReferenceBlockParam(msgspec.Struct, frozen=True):
    """A tool that a search found; here the model gets all tools from the start."""

    tool_name: str


def messages_of(given: Sequence[Given], system: Blocks | None) -> list[JsonObject]:
    """The messages of a chat; raises BadRequest, which names the block."""
    if not given:
        raise BadRequest("messages must not be empty", "messages")
    conversation = Conversation()
    if instructions := _instructions(system):
        conversation.add_instructions(instructions)
    held = list[tuple[InputMessage, str]]()  # nothing may come between a call and its result
    for index, one in enumerate(given):
        path = f"messages[{index}]"
        message = convert(one, InputMessage, path)
        held.append((message, f"{path}.content"))
        if message.role == "system" and conversation.has_open_calls:
            continue
        _add_message(*held.pop(), conversation)
        if not conversation.has_open_calls:
            _add_held(held, conversation)
    _add_held(held, conversation)
    if not (messages := conversation.finish()):
        raise BadRequest("messages have no block that a model could read", "messages")
    return messages


def _add_held(held: list[tuple[InputMessage, str]], conversation: Conversation) -> None:
    for message, path in held:
        _add_message(message, path, conversation)
    held.clear()


def _instructions(system: Blocks | None) -> list[JsonObject]:
    if isinstance(system, str):
        return [_text(system)]
    texts = [_text_block(one, f"system[{n}]") for n, one in enumerate(system or ())]
    return [one for one in texts if not one["text"].startswith(BILLING_HEADER)]


def _add_message(message: InputMessage, path: str, conversation: Conversation) -> None:
    content = message.content
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks = [(one, f"{path}[{n}]") for n, one in enumerate(given)]
    match message.role:
        case "assistant":
            for block, place in blocks:
                _add_assistant_block(block, place, conversation)
        case "user":
            _add_user_blocks(blocks, conversation)
        case _:
            if texts := [_text_block(*one) for one in blocks]:
                _add_system_texts(texts, conversation)


def _add_assistant_block(block: Given, path: str, conversation: Conversation) -> None:
    """Add a content block of the assistant."""
    match block.get("type"):
        case "text":
            conversation.turn.content.append(_text_block(block, path))
        case "tool_use":
            call = convert(block, ToolUseBlockParam, path)
            conversation.add_call(call.id, call.name, _arguments(call.input, path))
        case "thinking":
            thought = convert(block, ThinkingBlockParam, path)
            if text := thought.thinking or hidden_thinking_of(thought.signature or ""):
                conversation.turn.add_reasoning(text)
        case "redacted_thinking":
            pass  # only the server that made it can read it
        case kind:
            raise _unknown(kind, path, "text, tool_use and thinking")


def _arguments(given: dict[str, Any], path: str) -> str:
    """Arguments as JSON with spaces, as models write it."""
    try:
        return json.dumps(given, ensure_ascii=False)
    except RecursionError as error:
        raise BadRequest(f"{path}.input is too deep", f"{path}.input") from error


def _add_user_blocks(blocks: Sequence[tuple[Given, str]], conversation: Conversation) -> None:
    """Add tool results, and then the user's text."""
    texts = list[JsonObject]()
    returned = False
    for block, path in blocks:
        match block.get("type"):
            case "tool_result":
                done = convert(block, ToolResultBlockParam, path)
                conversation.add_tool_result(done.tool_use_id, _result(done, f"{path}.content"))
                returned = True
            case "text":
                texts.append(_text_block(block, path))
            case kind:
                raise _unknown(kind, path, "text and tool_result")
    if texts or not returned:
        _append_texts(texts, conversation, "user")


def _add_system_texts(texts: list[JsonObject], conversation: Conversation) -> None:
    before = conversation.finish()
    if all(one["role"] == "system" for one in before):
        conversation.add_instructions(texts)
    else:
        _append_texts(texts, conversation, "user", "tool")


def _append_texts(texts: list[JsonObject], conversation: Conversation, *roles: str) -> None:
    """Append to the last message if it has one of these roles, or else add a user message."""
    before = conversation.finish()
    if before and before[-1]["role"] in roles:
        before[-1]["content"] += texts
    else:
        conversation.add_message({"role": "user", "content": texts})


def _result(done: ToolResultBlockParam, path: str) -> list[JsonObject]:
    """The result as text. Templates have no field for errors, so a prefix marks them."""
    failed = [_text(ERROR_PREFIX)] if done.is_error else []
    if isinstance(done.content, str):
        return [*failed, _text(done.content)]
    blocks = done.content or ()
    return [*failed, *(_result_part(one, f"{path}[{n}]") for n, one in enumerate(blocks))]


def _result_part(block: Given, path: str) -> JsonObject:
    if block.get("type") == "tool_reference":
        return _text(convert(block, ToolReferenceBlockParam, path).tool_name)
    return _text_block(block, path)


def _text_block(block: Given, path: str) -> JsonObject:
    if block.get("type") != "text":
        raise _unknown(block.get("type"), path, "text")
    return _text(convert(block, TextBlockParam, path).text)


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _unknown(kind: object, path: str, known: str) -> BadRequest:
    """The refusal of a block type that no model here can read, such as images and documents."""
    told = f"blocks of type {kind}" if isinstance(kind, str) else "blocks without a type"
    why = f"{path}.type: {told} are not supported here, only those of {known}"
    return BadRequest(why, f"{path}.type")
