"""Steps that parse calls in JSON: objects of a name and arguments, alone or in a list."""

from dataclasses import dataclass

from api.tools.parsing.json_text import JsonValue
from api.tools.parsing.output import SPACE, NotACall, ParserOutput, Steps, TextSteps
from api.tools.parsing.steps import Accepts, json_string, literal, skip_space, word_until

NAMES, ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
LABELS = ("id", "type", "tool_call_id")  # some models write these keys too; they are ignored
NO_ARGUMENTS, NOTHING = "{}", "null"


def json_arguments(out: ParserOutput, letter: str) -> Steps:
    """Read a JSON object and emit it as the call's arguments as it comes; raises NotACall."""
    value = _object(letter)
    while not value.take(letter):
        out.add_arguments(letter)
        letter = yield
    out.add_arguments(letter)


def buffered_arguments(letter: str) -> TextSteps:
    """Returns the text of a JSON object, which may be the content of a string; null and an
    empty string stand for one without members. Raises NotACall.
    """
    if letter == NOTHING[0]:
        yield from literal(letter, NOTHING)
        return NO_ARGUMENTS
    if letter == '"':
        return _object_in((yield from json_string(letter)))
    value, read = _object(letter), letter
    while not value.take(letter):
        letter = yield
        read += letter
    return read


def _object_in(text: str) -> str:
    """The text without white space around it, if it is a JSON object; raises NotACall."""
    text = text.strip(SPACE) or NO_ARGUMENTS
    value = _object(text[0])
    if any(value.take(letter) for letter in text[:-1]) or not value.take(text[-1]):
        raise NotACall
    return text


def _object(letter: str) -> JsonValue:
    if letter != "{":
        raise NotACall
    return JsonValue()


def call_object(
    out: ParserOutput, letter: str, accepts: Accepts, *, name_first: bool = False
) -> Steps:
    """Parse a call as a JSON object of name and arguments, in any order. `name_first`: the name
    comes first, and has no escapes. Raises NotACall.
    """
    yield from literal(letter, "{")
    call, letter = _CallObject(out, accepts), ","
    if name_first:
        yield from literal((yield from skip_space()), f'"{NAMES[0]}"')
        yield from literal((yield from skip_space()), ":")
        yield from literal((yield from skip_space()), '"')
        call.begin((yield from word_until('"')))
        letter = yield from skip_space()
    while letter == ",":
        key = yield from json_string((yield from skip_space()))
        yield from literal((yield from skip_space()), ":")
        yield from call.member(key, (yield from skip_space()))
        letter = yield from skip_space()
    yield from literal(letter, "}")
    call.end()


@dataclass(slots=True)
class _CallObject:
    """Parses a call that is a JSON object; arguments before the name wait for it."""

    out: ParserOutput
    accepts: Accepts
    has_name: bool = False
    has_arguments: bool = False
    early_arguments: str = ""

    def member(self, key: str, letter: str) -> Steps:
        if key in NAMES and not self.has_name:
            self.begin((yield from json_string(letter)))
        elif key in ARGUMENTS and not self.has_arguments:
            self.has_arguments = True
            if self.has_name and letter == "{":
                yield from json_arguments(self.out, letter)
                return
            self.early_arguments = yield from buffered_arguments(letter)
            if self.has_name:
                self.out.add_arguments(self.early_arguments)
        elif key in LABELS:
            yield from json_string(letter)
        else:
            raise NotACall

    def begin(self, name: str) -> None:
        """Start the call of this name; raises NotACall."""
        if not self.accepts(name):
            raise NotACall
        self.has_name = True
        self.out.start_call(name)
        if self.early_arguments:
            self.out.add_arguments(self.early_arguments)

    def end(self) -> None:
        if not self.has_name:
            raise NotACall
        if not self.has_arguments:
            self.out.add_arguments(NO_ARGUMENTS)
        self.out.end_call()


def call_list(out: ParserOutput, letter: str, accepts: Accepts) -> Steps:
    """Parse a JSON list of calls, each as in `call_object`; raises NotACall."""
    yield from literal(letter, "[")
    letter = ","
    while letter == ",":
        yield from call_object(out, (yield from skip_space()), accepts)
        letter = yield from skip_space()
    yield from literal(letter, "]")
    out.drop_held()
