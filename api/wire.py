"""Explains what is wrong in which field, for node calls and text endpoints. Pure."""

import re
from typing import TypeVar

import msgspec

AT = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$")
MISSING = re.compile(r"^Object missing required field `(?P<name>.*?)`")
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
        raise explained(error, within) from error


def explained(error: Exception, within: str = "") -> WireError:
    """The client's error message for a value of the wrong type, with the field's path."""
    said = str(error)
    path, missing = AT.search(said), MISSING.match(said)
    steps = (within, path and path["path"].partition("[...]")[0], missing and missing["name"])
    param = ".".join(step for step in steps if step).replace(".[", "[")
    message = AT.sub("", said)
    return WireError(f"{param}: {message}" if param else message, param or None)
