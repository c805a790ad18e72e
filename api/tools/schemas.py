"""The form of an answer that has to be calls, as a JSON schema. Pure.

One function: its arguments. One of several: a list of objects, each a function's `name` and
its `parameters`. As a structural tag, where the text of a custom tool is of a Lark grammar.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from api.tools.functions import Function, InputSchema
from api.tools.wishes import ToolUse
from api.tools.writing import Offer, as_json, json_call, row, text_as_json
from api.wire import WireError
from engine.grammars.schemas import NAMED, NESTED
from engine.grammars.structural_tags import structural_tag_of
from engine.request import Grammar

NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
"""Of a function that takes no parameters."""
PLACE = "#/items/anyOf/{}/properties/parameters"
OWN_NAMES = ("$id", "$schema")  # of a schema that stands alone


def forced_grammar(use: ToolUse | None) -> Grammar | None:
    """None where nothing has to be called; raises WireError."""
    forced = use.forced if use else ()
    if use is None or not forced:
        return None
    try:
        if use.named is not None:
            return arguments_grammar(forced[0][1])
        if any(text_as_json(parameters_of(one)) for _, one in forced):
            return _written(use)
        calls = [_call(one, number) for number, (_, one) in enumerate(forced)]
        limits = {"minItems": 1} if use.parallel else {"minItems": 1, "maxItems": 1}
        return _grammar({"type": "array", "items": {"anyOf": calls}, **limits})
    except RecursionError as error:
        raise WireError("tools: a schema is nested too deeply", "tools") from error


def arguments_grammar(function: Function) -> Grammar:
    """The form of one function's arguments."""
    schema = parameters_of(function)
    if text_as_json(schema) is None:
        return _grammar(schema)
    return Grammar("structural_tag", structural_tag_of(as_json(schema)))


def _written(use: ToolUse) -> Grammar:
    """Of calls of what no schema says all of."""
    schemas = {one.name: parameters_of(one) for _, one in use.forced}
    calls = Offer(schemas, use.parallel, "").calls(partial(json_call, key="parameters"), ", ")
    return Grammar("structural_tag", structural_tag_of(row("[", calls, "]")))


def _call(function: Function, number: int) -> Mapping[str, Any]:
    given = {k: v for k, v in parameters_of(function).items() if k not in OWN_NAMES}
    return {
        "type": "object",
        "properties": {
            "name": {"const": function.name},
            "parameters": _moved(given, PLACE.format(number)),
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def parameters_of(function: Function) -> Mapping[str, Any]:
    """What its arguments have to be."""
    if function.parameters is None:
        return NOTHING
    if isinstance(function.parameters, InputSchema):
        return function.parameters
    return {"type": "object", **function.parameters}


def _moved(schema: Any, place: str) -> Any:  # noqa: ANN401  JSON of any shape
    """The same schema where its root is elsewhere: references to places in it follow."""
    if isinstance(schema, list):
        return [_moved(one, place) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _within(key, value, place) for key, value in schema.items()}


def _within(key: str, value: Any, place: str) -> Any:  # noqa: ANN401  JSON of any shape
    if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return place + value[1:]
    if key in NAMED and isinstance(value, Mapping):
        return {name: _moved(one, place) for name, one in value.items()}
    return _moved(value, place) if key in NESTED else value


def _grammar(schema: Mapping[str, Any]) -> Grammar:
    return Grammar("json_schema", msgspec.json.encode(schema).decode())
