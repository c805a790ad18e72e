"""Calls as Qwen3-Coder writes them: arguments are text, and the schema says what they mean.

    <tool_call>
    <function=f>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

An argument is said when it is whole.
"""

from collections.abc import Container, Iterator, Mapping

import msgspec

from api.tools.steps import any_name, attempt, content_until, literal, space
from api.tools.tape import NotACall, Step, Steps, Tape
from api.tools.wishes import Function, Offered

OPENS, CLOSES = "<tool_call>", "</tool_call>"
FUNCTION, PARAMETER = "<function=", "parameter="
END_OF_FUNCTION, END_OF_PARAMETER = "/function>", "</parameter>"
KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}


def qwen3_coder(tape: Tape, offered: Offered) -> Steps:
    """Each call has tags of its own; text may stand between them."""
    while True:
        yield from content_until(tape, OPENS)
        yield from attempt(_call(tape, offered))


def _call(tape: Tape, offered: Offered) -> Steps:
    yield from literal((yield from space()), FUNCTION)
    name = yield from _until(">")
    if not any_name(name):
        raise NotACall
    tape.begin(name)
    yield from _arguments(tape, offered.get(name))
    tape.end()
    yield from literal((yield from space()), CLOSES)
    tape.drop()


def _arguments(tape: Tape, function: Function | None) -> Steps:
    said = set[str]()
    while True:
        yield from literal((yield from space()), "<")
        letter = yield
        if letter == END_OF_FUNCTION[0]:
            yield from literal(letter, END_OF_FUNCTION)
            tape.argue("}" if said else "{}")
            return
        yield from literal(letter, PARAMETER)
        key = yield from _until(">")
        if key in said:
            raise NotACall
        value = _value((yield from _until(END_OF_PARAMETER)), _schema(function, key))
        tape.argue(f"{', ' if said else '{'}{_json(key)}: {value}")
        said.add(key)


def _until(end: str) -> Step:
    """Comes to what is before the end."""
    read = ""
    while not read.endswith(end):
        read += yield
    return read[: -len(end)]


def _schema(function: Function | None, key: str) -> Mapping[str, object]:
    properties = ((function and function.parameters) or {}).get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def _value(text: str, schema: Mapping[str, object]) -> str:
    """As JSON: what is meant to be a text, or is no JSON, is a string.

    The lines that begin and end it are the form's, not its.
    """
    text = text.removeprefix("\n").removesuffix("\n")
    kinds = frozenset(_kinds(schema))
    if kinds != {"string"}:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _json(text)
        if "string" not in kinds or _is_one_of(value, kinds):
            return _json(value)
    return _json(text)


def _kinds(schema: object) -> Iterator[str]:
    """The types that a schema names, in whatever way."""
    if not isinstance(schema, Mapping):
        return
    said = schema.get("type")
    yield from [said] if isinstance(said, str) else said if isinstance(said, list) else ()
    for several in ("anyOf", "oneOf"):
        if isinstance(inner := schema.get(several), list):
            for one in inner:
                yield from _kinds(one)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    for value in values if isinstance(values, list) else ():
        yield from (name for name, kind in KINDS.items() if type(value) in kind)


def _is_one_of(value: object, kinds: Container[str]) -> bool:
    return any(name in kinds and type(value) in kind for name, kind in KINDS.items())


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
