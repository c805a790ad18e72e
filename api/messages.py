"""Chat messages, from OpenAI's many forms to the one that chat templates read."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.bodies import Message, convert
from api.errors import BadRequest

Template = dict[str, Any]


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[Template]:
    """Every content as one string, arguments of past tool calls as objects; BadRequest."""
    if not messages:
        raise BadRequest("messages must not be empty", "messages")
    return [_message(given, f"messages[{index}]") for index, given in enumerate(messages)]


def _message(given: Mapping[str, Any], path: str) -> Template:
    message = convert(given, Message, path)
    if message.content is None and message.role != "assistant":
        raise BadRequest(f"{path}.content is missing", f"{path}.content")
    ready = {**given, "content": _text(message.content or "", f"{path}.content")}
    ready.pop("tool_calls", None)  # templates ask whether there is such a key
    if message.tool_calls:
        ready["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return ready


def _text(content: str | list[dict[str, Any]], path: str) -> str:
    """Parts are put on lines of their own, as vLLM does."""
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Mapping[str, Any], path: str) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        raise BadRequest(f"{path}: only parts of type text are supported", f"{path}.type")
    if not isinstance(text, str):
        raise BadRequest(f"{path}.text must be a string", f"{path}.text")
    return text


def _tool_call(call: Mapping[str, Any]) -> Template:
    """OpenAI sends arguments as JSON in a string, or an empty one; templates want an object."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}")
    except (msgspec.DecodeError, RecursionError):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}
