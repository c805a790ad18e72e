"""The grammar of an answer that must be calls (`tool_choice` required, or a function). Pure.

It is a JSON schema: for a chosen function, that of its arguments; otherwise that of a list of
objects, each with a function's `name` and its `parameters`. If a custom tool's input has a Lark
grammar, it is a structural tag instead.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from api.tools.call_formats import (
    CallableTools,
    arguments_format,
    input_as_json,
    json_call_format,
    seq,
)
from api.tools.functions import Function, InputSchema
from api.tools.tool_choice import ToolSettings
from api.wire import WireError
from engine.grammars.schemas import NAMED, NESTED
from engine.grammars.structural_tags import structural_tag_of
from engine.request import Grammar

NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a function that takes no parameters."""
PARAMETERS_POINTER = "#/items/anyOf/{}/properties/parameters"
OWN_NAMES = ("$id", "$schema")  # only valid at the top of a schema


def forced_grammar(tools: ToolSettings | None) -> Grammar | None:
    """The grammar of the calls; None if nothing has to be called. Raises WireError."""
    forced = tools.forced if tools else ()
    if tools is None or not forced:
        return None
    try:
        if tools.named is not None:
            return arguments_grammar(forced[0][1])
        if any(input_as_json(parameters_of(one)) for _, one in forced):
            return _structural_tag(tools)
        calls = [_call(one, number) for number, (_, one) in enumerate(forced)]
        limits = {"minItems": 1} if tools.parallel else {"minItems": 1, "maxItems": 1}
        return _grammar({"type": "array", "items": {"anyOf": calls}, **limits})
    except RecursionError as error:
        raise WireError("tools: a schema is nested too deeply", "tools") from error


def arguments_grammar(function: Function) -> Grammar:
    """The grammar of one function's arguments."""
    schema = parameters_of(function)
    if input_as_json(schema) is None:
        return _grammar(schema)
    return Grammar("structural_tag", structural_tag_of(arguments_format(schema)))


def _structural_tag(tools: ToolSettings) -> Grammar:
    """A list of calls, some of which have an input that no JSON schema can express."""
    schemas = {one.name: parameters_of(one) for _, one in tools.forced}
    calls = CallableTools(schemas, tools.parallel, "").calls(
        partial(json_call_format, key="parameters"), ", "
    )
    return Grammar("structural_tag", structural_tag_of(seq("[", calls, "]")))


def _call(function: Function, number: int) -> Mapping[str, Any]:
    given = {k: v for k, v in parameters_of(function).items() if k not in OWN_NAMES}
    return {
        "type": "object",
        "properties": {
            "name": {"const": function.name},
            "parameters": _rebased(given, PARAMETERS_POINTER.format(number)),
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def parameters_of(function: Function) -> Mapping[str, Any]:
    """The schema of the function's arguments."""
    if function.parameters is None:
        return NO_PARAMETERS
    if isinstance(function.parameters, InputSchema):
        return function.parameters
    return {"type": "object", **function.parameters}


def _rebased(schema: Any, place: str) -> Any:  # noqa: ANN401  JSON of any shape
    """The schema moved to another place in a larger one: its references are adapted."""
    if isinstance(schema, list):
        return [_rebased(one, place) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _within(key, value, place) for key, value in schema.items()}


def _within(key: str, value: Any, place: str) -> Any:  # noqa: ANN401  JSON of any shape
    if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return place + value[1:]
    if key in NAMED and isinstance(value, Mapping):
        return {name: _rebased(one, place) for name, one in value.items()}
    return _rebased(value, place) if key in NESTED else value


def _grammar(schema: Mapping[str, Any]) -> Grammar:
    return Grammar("json_schema", msgspec.json.encode(schema).decode())
