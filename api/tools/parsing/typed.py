"""Arguments that models write as plain text: the function's schema gives their types."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from api.tools.parsing.argument_types import ArgumentTypes
from api.tools.parsing.json_text import JsonValue, json_value
from api.tools.parsing.json_types import STRING_ONLY, JsonTypes
from api.tools.parsing.keys import key_before
from api.tools.parsing.output import SPACE, NotACall, ParserOutput, Steps, TextSteps
from api.tools.parsing.python_values import python_to_json
from api.tools.parsing.steps import longest_partial_marker, until

PYTHON_CONSTANTS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
"""Python's constants and their JSON equivalents; models that saw them in prompts write them."""


@dataclass(slots=True)
class TypedArguments:
    """Converts the arguments of one call to JSON. An argument that can only be a string is
    emitted as it comes, any other when it is complete. A key may come again: the last of a name
    counts, as in JSON.
    """

    out: ParserOutput
    function: str
    types: ArgumentTypes
    _before: str = "{"

    def read_key(self, end: str) -> TextSteps:
        """Returns the next key, up to the marker `end`; white space around it belongs to it
        only if the schema says so. Raises NotACall.
        """
        known = self.types.properties(self.function)
        key = yield from key_before(end, known)
        return key if key in known else key.strip(SPACE)

    def read_value(
        self, key: str, end: str, *, lines: bool = False, types: JsonTypes | None = None
    ) -> Steps:
        """Read the value of `key`, up to the marker `end`. `lines`: a line break on either side
        of it belongs to the syntax. `types` default to those of the schema.
        """
        before, self._before = f"{self._before}{json_text(key)}: ", ", "
        types = types or self.types.of(self.function, key)
        if types == STRING_ONLY:
            self.out.add_arguments(f'{before}"')
            yield from stream_string(self.out, end, "\n" if lines else "")
            return
        is_json = str not in types and self.types.is_strict(self.function)
        text = yield from until_outside_strings(end) if is_json else until(end)
        if lines:
            text = text.removeprefix("\n").removesuffix("\n")
        self.out.add_arguments(before + json_value_of(text, types))

    def end(self) -> None:
        """There are no more arguments."""
        self.out.add_arguments("{}" if self._before == "{" else "}")


def until_outside_strings(end: str) -> TextSteps:
    """Returns the text before the `end`, which may also stand in strings if this is JSON."""
    read = ""
    value: JsonValue | None = JsonValue()
    while (value and value.in_string) or not read.endswith(end):
        letter = yield
        read += letter
        try:
            value = None if value is None or value.take(letter) else value
        except NotACall:
            value = None
    return read.removesuffix(end)


def stream_string(out: ParserOutput, end: str, line: str = "") -> Steps:
    """Emit a string as it comes, up to the marker after it, without a `line` around it."""
    ends = (end, line + end) if line else (end,)
    yield
    if out.held == line:
        out.drop_held()
        yield
    while not out.held.endswith(end):
        begun = longest_partial_marker(out.held, ends)
        if decided := out.held[: len(out.held) - begun]:
            out.add_arguments(_inside(decided), but=begun)
        yield
    out.add_arguments(_inside(out.held.removesuffix(end).removesuffix(line)) + '"')


def json_value_of(text: str, types: JsonTypes) -> str:
    """A value of these types as JSON. JSON stays as it is; where no string is accepted, a
    Python literal is converted, as some templates show those. Anything else is a string, and so
    is a value of another type if strings are accepted.
    """
    written = text.strip(SPACE)
    if str not in types:
        written = PYTHON_CONSTANTS.get(written, written)
    try:
        kind = type(json_value(written))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        converted = None if str in types else python_to_json(written)
        return json_text(text) if converted is None else converted
    return json_text(text) if str in types and kind not in types else written


def _inside(text: str) -> str:
    return json_text(text)[1:-1]


def json_text(value: str) -> str:
    """A string as JSON."""
    return msgspec.json.encode(value).decode()
