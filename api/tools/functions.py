"""Functions that a client offers, and its custom tools as functions of one text. Pure."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.wire import WireError, convert
from engine.request import LONGEST_SOURCE

FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}\Z")]
CUSTOM: Literal["custom"] = "custom"
INPUT = "input"
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string", "description": "all that the tool is given"}},
    "required": [INPUT],
    "additionalProperties": False,
}
"""Of a custom tool: models call nothing but functions."""


class Function(msgspec.Struct, frozen=True):
    """One function. `strict`: where calls are held to schemas, this one has to be possible."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """OpenAI's object; there are tools of other types, which are not a client's to run."""

    type: Literal["function"]
    function: Function


class InputForm(msgspec.Struct, frozen=True):
    """What the text of a custom tool keeps to."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1, max_length=LONGEST_SOURCE)]


class TextFormat(msgspec.Struct, frozen=True):
    """OpenAI's object around it."""

    type: Literal["text", "grammar"]
    grammar: InputForm | None = None


class InputSchema(dict[str, Any]):
    """Of a custom tool whose text has a form, that was asked for at `place`; of its syntaxes a
    schema can say regular expressions only.
    """

    def __init__(self, form: InputForm, place: str) -> None:
        """The schema of one text, which says its form to the model."""
        self.form, self.place = form, place
        about = f"all that the tool is given, in this form ({form.syntax}): {form.definition}"
        text = {"type": "string", "description": about}
        if form.syntax == "regex":
            text["pattern"] = f"^(?:{form.definition})$"
        super().__init__({**PARAMETERS, "properties": {INPUT: text}})


class Custom(msgspec.Struct, frozen=True):
    """A tool that takes a text as it is."""

    name: FunctionName
    description: str | None = None
    format: dict[str, Any] | None = None


class CustomTool(msgspec.Struct, frozen=True):
    """OpenAI's object of it."""

    type: Literal["custom"]
    custom: Custom


def custom_function(given: Mapping[str, Any], path: str) -> Function:
    """A custom tool as the function that the model calls; raises WireError."""
    custom = convert(given, CustomTool, path).custom
    param = f"{path}.{CUSTOM}.format"
    format_ = None if custom.format is None else convert(custom.format, TextFormat, param)
    if format_ is None or format_.type == "text":
        return Function(custom.name, custom.description, dict(PARAMETERS))
    if format_.grammar is None:
        raise WireError(f"{param}.grammar is missing", f"{param}.grammar")
    schema = InputSchema(format_.grammar, param)
    return Function(custom.name, custom.description, schema, strict=True)


def as_functions(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What templates are told: they know functions only, which stay just as they came. Raises
    WireError.
    """
    return [_as_function(one, f"tools[{index}]") for index, one in enumerate(tools)]


def _as_function(given: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    if given.get("type") != CUSTOM:
        return given
    one = custom_function(given, path)
    told = {"name": one.name, "description": one.description, "parameters": one.parameters}
    function = {name: value for name, value in told.items() if value is not None}
    return {"type": "function", "function": function}
