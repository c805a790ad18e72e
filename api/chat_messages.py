"""Normalizes OpenAI chat messages to the one shape that chat templates read."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from api.bodies import RequestMessage, convert
from api.body_limits import refuse_crowded
from api.errors import BadRequest
from api.tools.deltas import CalledCustom
from api.tools.dialects.known import KNOWN_TEMPLATES, template_text
from api.tools.functions import CUSTOM, FUNCTION
from api.tools.inputs import custom_arguments
from api.wire import WireError

Template = dict[str, Any]
MAY_BE_SILENT = ("assistant", "tool")
PARTS = ("text", "refusal")  # a model of OpenAI's says either, under a key of that name
_ARGUMENTS = r"""(?:\.|\[['"])arguments\b['"\]]*"""  # of a call; no variable of that name
ADDS_ARGUMENTS = re.compile(
    rf"""{_ARGUMENTS}\s*([+~]|\|\s*string\b)|[+~]\s*\w[\w.\['"\]]*{_ARGUMENTS}\s*[-+]?[}}%]"""
)


def template_messages(
    messages: Sequence[Mapping[str, Any]], template: object
) -> list[Template]:
    """Make every message's content one string; raises BadRequest.

    Arguments of past tool calls become objects, but stay text if the template concatenates
    them, as DeepSeek's does, or makes them a string, as vLLM's for InternLM does.
    """
    if not messages:
        raise BadRequest("messages must not be empty", "messages")
    ready = [_message(given, f"messages[{index}]") for index, given in enumerate(messages)]
    calling = [one for one in ready if "tool_calls" in one]
    adds = calling and _adds_arguments(template_text(template))
    for one in calling:
        read = _as_text if adds else _as_object
        one["tool_calls"] = [_tool_call(call, read) for call in one["tool_calls"]]
    return ready


def _of_function(call: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """A custom tool's call as a call of the function that stands for the tool in the prompt."""
    if call.get("type") != CUSTOM:
        return call
    custom = convert(call.get(CUSTOM), CalledCustom, f"{path}.{CUSTOM}")
    function = {"name": custom.name, "arguments": custom_arguments(custom.input)}
    kept = {key: value for key, value in call.items() if key != CUSTOM}
    return {**kept, "type": FUNCTION, "function": function}


@lru_cache(KNOWN_TEMPLATES)
def _adds_arguments(template: str) -> bool:
    return ADDS_ARGUMENTS.search(template) is not None


def _message(given: Mapping[str, Any], path: str) -> Template:
    message = convert(given, RequestMessage, path)
    if message.content is None and message.role not in MAY_BE_SILENT:
        raise BadRequest(f"{path}.content is missing", f"{path}.content")
    ready = {**given, "content": _text(message.content or "", f"{path}.content")}
    ready.pop("tool_calls", None)  # templates ask whether there is such a key
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        told = [_of_function(call, f"{path}.tool_calls[{number}]") for number, call in calls]
        ready["tool_calls"] = told
    return ready


def _text(content: str | list[dict[str, Any]], path: str) -> str:
    """The content as one string; its parts are put on separate lines, as vLLM does."""
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Mapping[str, Any], path: str) -> str:
    kind = part.get("type")
    if kind not in PARTS:
        raise BadRequest(f"{path}: only parts of type text are supported", f"{path}.type")
    text = part.get(kind)
    if not isinstance(text, str):
        raise BadRequest(f"{path}.{kind} must be a string", f"{path}.{kind}")
    return text


def _tool_call(call: Mapping[str, Any], read: Callable[[str], object]) -> Template:
    """The call with its arguments parsed: OpenAI sends JSON in a string, or an empty string."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return dict(call)
    return {**call, "function": {**function, "arguments": read(function["arguments"])}}


def _as_text(arguments: str) -> object:
    return arguments or "{}"


def _as_object(arguments: str) -> object:
    """The arguments as an object; text that is not JSON stays as it is. Raises BadRequest."""
    data = arguments.encode() or b"{}"
    try:
        refuse_crowded(data, "The arguments of a tool call have")
        return msgspec.json.decode(data)
    except WireError as error:
        raise BadRequest(str(error), "messages") from error
    except (msgspec.DecodeError, RecursionError):
        return arguments
