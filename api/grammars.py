"""Reads the many ways to ask for structured output into one Grammar. Pure.

Whether the schema, expression or grammar is valid is for the engine to decide.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.body_limits import MOST_LISTED
from api.wire import WireError, convert
from engine.request import Grammar

ONE_OF = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag")
STRUCTURED = "structured_outputs"
Schema = dict[str, Any] | str
Choices = Annotated[tuple[str, ...], Meta(max_length=MOST_LISTED)]


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's object; exactly one of the fields in ONE_OF is set."""

    json: Schema | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Schema | None = None
    disable_any_whitespace: bool | None = False
    disable_additional_properties: bool | None = False
    whitespace_pattern: str | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    """The supported part of OpenAI's `json_schema`; `strict` is always in force."""

    schema: Schema


class ResponseFormat(msgspec.Struct, frozen=True):
    """OpenAI's object, or vLLM's `structural_tag`, whose other keys belong to the tag."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None


def read_structured(given: object) -> Grammar | None:
    """vLLM's `structured_outputs`; raises WireError, which names the field."""
    asked = convert(given, StructuredOutputs, STRUCTURED)
    for option in ("disable_any_whitespace", "disable_additional_properties"):
        if getattr(asked, option):
            raise WireError(f"{STRUCTURED}.{option} is not supported", f"{STRUCTURED}.{option}")
    if asked.whitespace_pattern is not None:
        param = f"{STRUCTURED}.whitespace_pattern"
        raise WireError(f"{param} is not supported", param)
    said = [name for name in ONE_OF if getattr(asked, name) not in (None, False)]
    if len(said) != 1:
        raise WireError(f"{STRUCTURED} wants exactly one of {', '.join(ONE_OF)}", STRUCTURED)
    return _grammar(said[0], getattr(asked, said[0]), f"{STRUCTURED}.{said[0]}")


def read_format(given: Mapping[str, object]) -> Grammar | None:
    """OpenAI's `response_format`; None for plain text. Raises WireError."""
    asked = convert(given, ResponseFormat, "response_format")
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return Grammar("json_object")
    if asked.type == "structural_tag":
        return _grammar("structural_tag", given, "response_format")
    if asked.json_schema is None:
        raise WireError("response_format.json_schema is missing", "response_format.json_schema")
    return _grammar("json", asked.json_schema.schema, "response_format.json_schema.schema")


def read_guided(name: str, value: object) -> Grammar | None:
    """Read one of vLLM's older fields, one for each kind of grammar; raises WireError."""
    if value is None:
        return None
    return _grammar(name.removeprefix("guided_"), value, name)


def structured_of(grammar: Grammar | None) -> dict[str, object] | None:
    """A Grammar as `structured_outputs`, which nodes of any make can read."""
    if grammar is None:
        return None
    match grammar.kind:
        case "json_schema":
            return {"json": grammar.source}
        case "json_object":
            return {"json_object": True}
        case "ebnf":
            return {"grammar": grammar.source}
        case "choice":
            return {"choice": msgspec.json.decode(grammar.source)}
        case kind:
            return {kind: grammar.source}


def _grammar(name: str, value: Any, param: str) -> Grammar:  # noqa: ANN401  checked here
    match name:
        case "json_object":
            return Grammar("json_object")
        case "json":
            return Grammar("json_schema", _text(value))
        case "structural_tag":
            return Grammar("structural_tag", _text(value))
        case "choice":
            return Grammar("choice", _choices(value, param))
    if not value:
        raise WireError(f"{param} must not be empty", param)
    return Grammar("regex" if name == "regex" else "ebnf", value)


def _text(value: Mapping[str, object] | str) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _choices(values: Sequence[str], param: str) -> str:
    if not values:
        raise WireError(f"{param} must not be empty", param)
    return msgspec.json.encode(values).decode()
