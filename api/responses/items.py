"""Converts the items of a request's `input`, and its `instructions`, into a chat's messages.

A client may send items of `output` back just as it got them.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.bodies import convert
from api.conversation import Conversation, JsonObject
from api.errors import BadRequest
from api.responses.namespaces import flat_name
from api.tools.inputs import custom_arguments

Given = Mapping[str, Any]
Parts = str | list[dict[str, Any]]
TEXTS = ("input_text", "output_text", "text")
REFUSAL = "refusal"
Name = Annotated[str, Meta(min_length=1)]


class InputMessage(msgspec.Struct, frozen=True):
    """A message; the role `developer` means the same as `system`."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class FunctionCall(msgspec.Struct, frozen=True):
    """A call that the model has made; `arguments` are JSON."""

    call_id: Name
    name: Name
    arguments: str
    namespace: Name | None = None


class CustomToolCall(msgspec.Struct, frozen=True):
    """A call of a custom tool; `input` is the text that it was given."""

    call_id: Name
    name: Name
    input: str
    namespace: Name | None = None


class FunctionCallOutput(msgspec.Struct, frozen=True):
    """The result of a call."""

    call_id: Name
    output: Parts


class TextPart(msgspec.Struct, frozen=True):
    """A part of a reasoning item, or of its summary."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """The model's reasoning; other servers may send only a summary."""

    content: list[TextPart] | None = None
    summary: list[TextPart] | None = None


def messages_of(given: str | Sequence[Given], instructions: str | None) -> list[JsonObject]:
    """The messages of a chat; raises BadRequest, which names the item."""
    if isinstance(given, list) and not given:
        raise BadRequest("input must not be empty", "input")
    conversation = Conversation()
    if instructions is not None:
        conversation.add_instructions(_texts(instructions, "instructions"))
    if isinstance(given, str):
        conversation.add_message({"role": "user", "content": _texts(given, "input")})
    else:
        for index, item in enumerate(given):
            _read(item, f"input[{index}]", conversation)
    return conversation.finish()


def _read(item: Given, path: str, conversation: Conversation) -> None:
    kind = item.get("type")
    if kind is None and "role" in item:
        kind = "message"
    match kind:
        case "message":
            _message(convert(item, InputMessage, path), path, conversation)
        case "function_call":
            call = convert(item, FunctionCall, path)
            conversation.add_call(
                call.call_id, flat_name(call.namespace, call.name), call.arguments
            )
        case "custom_tool_call":
            custom = convert(item, CustomToolCall, path)
            name, given = (
                flat_name(custom.namespace, custom.name),
                custom_arguments(custom.input),
            )
            conversation.add_call(custom.call_id, name, given)
        case "function_call_output" | "custom_tool_call_output":
            done = convert(item, FunctionCallOutput, path)
            conversation.add_tool_result(done.call_id, _texts(done.output, f"{path}.output"))
        case "reasoning":
            thought = convert(item, Reasoning, path)
            if parts := thought.content or thought.summary:
                conversation.turn.add_reasoning("\n".join(part.text for part in parts))
        case _:
            raise BadRequest(_unknown(item, path), f"{path}.type")


def _unknown(item: Given, path: str) -> str:
    kind = item.get("type")
    if kind is None and "id" not in item:
        return f"{path}.type is missing: an item has a type, or a role if it is a message"
    if kind in (None, "item_reference"):
        return f"{path}.type: no items are kept here that could be referred to: send it whole"
    return f"{path}.type: items of type {kind} are not supported"


def _message(given: InputMessage, path: str, conversation: Conversation) -> None:
    content = _texts(given.content, f"{path}.content")
    match given.role:
        case "assistant":
            conversation.add_assistant_content(content)
        case "user":
            conversation.add_message({"role": "user", "content": content})
        case _:
            conversation.add_instructions(content)


def _texts(content: Parts, path: str) -> list[JsonObject]:
    """The parts as a chat has them."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _part(part: Given, path: str) -> JsonObject:
    kind = part.get("type")
    if kind not in (*TEXTS, REFUSAL):
        raise BadRequest(f"{path}.type: only parts of text are supported", f"{path}.type")
    key = REFUSAL if kind == REFUSAL else "text"
    if not isinstance(part.get(key), str):
        raise BadRequest(f"{path}.{key} must be a string", f"{path}.{key}")
    return {"type": "text", "text": part[key]}
