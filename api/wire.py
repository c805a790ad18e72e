"""Explains what is wrong in which field, for node calls and text endpoints. Pure."""

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import inspect

AT = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`$")
STEP = re.compile(r"\[|[^.\[\]]+(?=[.\[]|$)")
ENUM = "Invalid enum value"
MISSING = re.compile(r"^Object missing required field `(?P<name>.*?)`")
LEFT_OUT = " […] "
LONGEST_ERROR = 10_000  # what a client wrote may be as large as its body
MOST_LEVELS = 500
TOO_DEEP = f"objects and lists may be nested {MOST_LEVELS} levels deep at most"
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that decoding untrusted JSON may raise."""
Kind = TypeVar("Kind")


class WireError(ValueError):
    """The other side sent something invalid; `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def convert(given: object, kind: type[Kind], within: str = "", *, strict: bool = True) -> Kind:
    """Check types and limits; `within` is the path of what is given. Raises WireError."""
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise explained(error, within, kind) from error


def explained(error: Exception, within: str = "", kind: type | None = None) -> WireError:
    """The client's error message for a value of the wrong type, with the field's path, and with
    the values that it may have if `kind`, the type of all that was given, says which.
    """
    said = TOO_DEEP if isinstance(error, RecursionError) else str(error)
    said = shortened(said, LONGEST_ERROR)
    path, missing = AT.search(said), MISSING.match(said)
    steps = (within, path and path["path"].partition("[...]")[0], missing and missing["name"])
    param = ".".join(step for step in steps if step).replace(".[", "[")
    message = AT.sub("", said)
    if path and path["key"]:
        message = f"of a key: {message}"
    if kind is not None and message.startswith(ENUM):
        known = _values(inspect.type_info(kind), STEP.findall(path["path"]) if path else [])
        message = f"{message}; it may be {', '.join(map(repr, known))}"
    return WireError(f"{param}: {message}" if param else message, param or None)


def _values(kind: inspect.Type, steps: Sequence[str]) -> Iterator[object]:
    """The values that may be at the end of these steps, if they are listed."""
    for found in _types_at(kind, steps):
        if isinstance(found, inspect.LiteralType):
            yield from found.values
        elif isinstance(found, inspect.EnumType):
            yield from (one.value for one in found.cls)


def _types_at(kind: inspect.Type, steps: Sequence[str]) -> Iterator[inspect.Type]:
    """The types at the end of these steps: names of fields, or a bracket for any element."""
    if isinstance(kind, inspect.Metadata):
        yield from _types_at(kind.type, steps)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _types_at(one, steps)
    elif not steps:
        yield kind
    else:
        for one in _types_within(kind, steps[0]):
            yield from _types_at(one, steps[1:])


def _types_within(kind: inspect.Type, step: str) -> Sequence[inspect.Type]:
    if isinstance(kind, inspect.StructType):
        return [field.type for field in kind.fields if field.encode_name == step]
    if isinstance(kind, inspect.CollectionType):
        return [kind.item_type]
    return [kind.value_type] if isinstance(kind, inspect.DictType) else []


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and end if it has more than `most` characters."""
    if len(text) <= most:
        return text
    half = (most - len(LEFT_OUT)) // 2
    return f"{text[:half]}{LEFT_OUT}{text[-half:]}"
