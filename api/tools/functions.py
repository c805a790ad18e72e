"""A client's tools: functions, and custom tools as functions of one string. Pure."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.wire import WireError, convert
from engine.request import LONGEST_SOURCE

FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}\Z")]
CUSTOM: Literal["custom"] = "custom"
FUNCTION: Literal["function"] = "function"
INPUT = "input"
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string", "description": "all that the tool is given"}},
    "required": [INPUT],
    "additionalProperties": False,
}
"""The parameters of a custom tool as a function: models see every tool as a function."""


class Function(msgspec.Struct, frozen=True):
    """One function. `strict`: a request is refused if no grammar can express its schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """OpenAI's object of a function. Tools of most other types run on OpenAI's servers."""

    type: Literal["function"]
    function: Function


class InputGrammar(msgspec.Struct, frozen=True):
    """The grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1, max_length=LONGEST_SOURCE)]


class CustomFormat(msgspec.Struct, frozen=True):
    """OpenAI's `format` of a custom tool."""

    type: Literal["text", "grammar"]
    grammar: InputGrammar | None = None


class InputSchema(dict[str, Any]):
    """The parameters of a custom tool whose input has a grammar, from the body's field `param`.
    Of the two syntaxes a JSON schema can express regular expressions only.
    """

    def __init__(self, grammar: InputGrammar, param: str) -> None:
        """The schema of one string, whose description tells the model the grammar."""
        self.grammar, self.param = grammar, param
        syntax, definition = grammar.syntax, grammar.definition
        about = f"all that the tool is given, in this form ({syntax}): {definition}"
        text = {"type": "string", "description": about}
        if syntax == "regex":
            text["pattern"] = f"^(?:{definition})$"
        super().__init__({**PARAMETERS, "properties": {INPUT: text}})


class Custom(msgspec.Struct, frozen=True):
    """A tool that takes one text, as the model writes it."""

    name: FunctionName
    description: str | None = None
    format: dict[str, Any] | None = None


class CustomTool(msgspec.Struct, frozen=True):
    """OpenAI's object of a custom tool."""

    type: Literal["custom"]
    custom: Custom


def custom_as_function(given: Mapping[str, Any], path: str) -> Function:
    """A custom tool as the function that the model calls; raises WireError."""
    custom = convert(given, CustomTool, path).custom
    param = f"{path}.{CUSTOM}.format"
    format_ = None if custom.format is None else convert(custom.format, CustomFormat, param)
    if format_ is None or format_.type == "text":
        return Function(custom.name, custom.description, dict(PARAMETERS))
    if format_.grammar is None:
        raise WireError(f"{param}.grammar is missing", f"{param}.grammar")
    schema = InputSchema(format_.grammar, param)
    return Function(custom.name, custom.description, schema, strict=True)


def as_functions(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The tools for a chat template, which knows functions only: custom tools become functions,
    and functions stay as the client sent them. Raises WireError.
    """
    return [_as_function(one, f"tools[{index}]") for index, one in enumerate(tools)]


def _as_function(given: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    if given.get("type") != CUSTOM:
        return given
    one = custom_as_function(given, path)
    told = {"name": one.name, "description": one.description, "parameters": one.parameters}
    function = {name: value for name, value in told.items() if value is not None}
    return {"type": "function", "function": function}
