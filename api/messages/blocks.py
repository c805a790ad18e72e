"""The messages of a body, block by block, and its `system` become the messages of a chat.

What a client got as `content` it may send back just as it is. Turns of one side that follow
each other are one, as at Anthropic's, and results of tools stand before what the user says
beside them. Many templates know no system's message but the first: what comes later is said
beside the user's words, or beside a result where that came last.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.bodies import convert
from api.conversation import Conversation, JsonObject
from api.errors import BadRequest
from api.messages.signatures import thought_of

Given = Mapping[str, Any]
Blocks = str | list[dict[str, Any]]
Name = Annotated[str, Meta(min_length=1)]
BILLING = "x-anthropic-billing-header"
"""What a block begins with in which Claude Code says who pays. It is another in each request,
and would keep all that follows out of every prefix cache.
"""
ERROR = "Error:"


class InputMessage(msgspec.Struct, frozen=True):
    """Somebody's words."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class Text(msgspec.Struct, frozen=True):
    """A block of text."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """What the model thought."""

    thinking: str
    signature: str | None = None


class ToolUse(msgspec.Struct, frozen=True):
    """A call that the model has made."""

    id: Name
    name: Name
    input: dict[str, Any]


class ToolResult(msgspec.Struct, frozen=True):
    """What it came to."""

    tool_use_id: Name
    content: Blocks | None = None
    is_error: bool | None = None


class ToolReference(msgspec.Struct, frozen=True):
    """A tool that was found; all of them are offered from the beginning."""

    tool_name: str


def messages_of(given: Sequence[Given], system: Blocks | None) -> list[JsonObject]:
    """Raises BadRequest, which names the block."""
    if not given:
        raise BadRequest("messages must not be empty", "messages")
    said = Conversation()
    if instructions := _instructions(system):
        said.add_instructions(instructions)
    held = list[tuple[InputMessage, str]]()  # nothing stands between a call and its result
    for index, one in enumerate(given):
        path = f"messages[{index}]"
        message = convert(one, InputMessage, path)
        held.append((message, f"{path}.content"))
        if message.role == "system" and said.has_open_calls:
            continue
        _read(*held.pop(), said)
        if not said.has_open_calls:
            _read_all(held, said)
    _read_all(held, said)
    return said.finish()


def _read_all(held: list[tuple[InputMessage, str]], said: Conversation) -> None:
    for message, path in held:
        _read(message, path, said)
    held.clear()


def _instructions(system: Blocks | None) -> list[JsonObject]:
    if isinstance(system, str):
        return [_text(system)]
    texts = [_text_block(one, f"system[{n}]") for n, one in enumerate(system or ())]
    return [one for one in texts if not one["text"].startswith(BILLING)]


def _read(message: InputMessage, path: str, said: Conversation) -> None:
    content = message.content
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks = [(one, f"{path}[{n}]") for n, one in enumerate(given)]
    match message.role:
        case "assistant":
            for block, place in blocks:
                _said(block, place, said)
        case "user":
            _asked(blocks, said)
        case _:
            if texts := [_text_block(*one) for one in blocks]:
                _instructed(texts, said)


def _said(block: Given, path: str, said: Conversation) -> None:
    """A block of the assistant's."""
    match block.get("type"):
        case "text":
            said.turn.content.append(_text_block(block, path))
        case "tool_use":
            call = convert(block, ToolUse, path)
            said.add_call(call.id, call.name, _arguments(call.input, path))
        case "thinking":
            thought = convert(block, Thought, path)
            if text := thought.thinking or thought_of(thought.signature or ""):
                said.turn.add_reasoning(text)
        case "redacted_thinking":
            pass  # it is another server's, which alone can read it
        case kind:
            raise _unknown(kind, path, "text, tool_use and thinking")


def _arguments(given: dict[str, Any], path: str) -> str:
    """With blanks, as models write it."""
    try:
        return json.dumps(given, ensure_ascii=False)
    except RecursionError as error:
        raise BadRequest(f"{path}.input is too deep", f"{path}.input") from error


def _asked(blocks: Sequence[tuple[Given, str]], said: Conversation) -> None:
    """What the user says, behind results of tools."""
    texts = list[JsonObject]()
    returned = False
    for block, path in blocks:
        match block.get("type"):
            case "tool_result":
                done = convert(block, ToolResult, path)
                said.add_tool_result(done.tool_use_id, _result(done, f"{path}.content"))
                returned = True
            case "text":
                texts.append(_text_block(block, path))
            case kind:
                raise _unknown(kind, path, "text and tool_result")
    if texts or not returned:
        _beside(texts, said, "user")


def _instructed(texts: list[JsonObject], said: Conversation) -> None:
    before = said.finish()
    if all(one["role"] == "system" for one in before):
        said.add_instructions(texts)
    else:
        _beside(texts, said, "user", "tool")


def _beside(texts: list[JsonObject], said: Conversation, *roles: str) -> None:
    """The user's, or more of the last message where it is one of these."""
    before = said.finish()
    if before and before[-1]["role"] in roles:
        before[-1]["content"] += texts
    else:
        said.add_message({"role": "user", "content": texts})


def _result(done: ToolResult, path: str) -> list[JsonObject]:
    """As text. Templates have no place for failures: that it is one stands before it."""
    failed = [_text(ERROR)] if done.is_error else []
    if isinstance(done.content, str):
        return [*failed, _text(done.content)]
    blocks = done.content or ()
    return [*failed, *(_result_part(one, f"{path}[{n}]") for n, one in enumerate(blocks))]


def _result_part(block: Given, path: str) -> JsonObject:
    if block.get("type") == "tool_reference":
        return _text(convert(block, ToolReference, path).tool_name)
    return _text_block(block, path)


def _text_block(block: Given, path: str) -> JsonObject:
    if block.get("type") != "text":
        raise _unknown(block.get("type"), path, "text")
    return _text(convert(block, Text, path).text)


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _unknown(kind: object, path: str, known: str) -> BadRequest:
    """Of a kind that no model here could be told of, as images and documents are."""
    told = f"blocks of type {kind}" if isinstance(kind, str) else "blocks without a type"
    why = f"{path}.type: {told} are not supported here, only those of {known}"
    return BadRequest(why, f"{path}.type")
