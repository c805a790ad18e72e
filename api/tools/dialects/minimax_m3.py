"""Calls as MiniMax M3 writes them: arguments are elements with the argument's name, and lists
and objects are elements within those. A mark of its own stands before each tag:

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="f">]<]minimax[>[<a>1]<]minimax[>[</a>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

The schema says what texts mean, and whether elements are a list (of `<item>`s) or an object. A
name that comes again makes a list, so arguments are told when the call is whole. In grammars,
lists and objects are JSON in the element of their argument.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from api.tools.call_formats import CallableTools, Schema, seq, tokens
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.json_types import SEVERAL, accepted_types, resolve_reference
from api.tools.parsing.output import SPACE, NotACall, ParserOutput, Steps, TextSteps
from api.tools.parsing.sections import SectionForm
from api.tools.parsing.steps import literal, name_until, until
from api.tools.parsing.typed import json_text, json_value_of
from api.tools.text_arguments import TextArguments
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format

MARK = "]<]minimax[>["
OPENS, CLOSES = f"{MARK}<tool_call>", f"{MARK}</tool_call>"
INVOKE, END = f"{MARK}<invoke name=", "invoke"
QUOTES = "\"'"
DEEPEST = 128  # elements within elements
TEXT = "$text"  # stands for the text beside elements


@dataclass(slots=True)
class Element:
    """A name, the text in the element, and the elements within it."""

    name: str
    text: str = ""
    inner: "list[Element]" = field(default_factory=list)


def minimax_m3(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    """Parse an answer: text may come around sections."""
    call = partial(_call, offered=offered)
    return SectionForm((OPENS,), (CLOSES,), INVOKE, call).parser()(out, offered)


def _call(out: ParserOutput, offered: OfferedFunctions) -> Steps:
    letter = yield
    quote = letter if letter in QUOTES else ""
    letter = (yield) if quote else letter
    name = yield from name_until(letter, f"{quote}>")
    out.start_call(name)
    call = yield from _element(END)
    known = offered.get(name)
    out.add_arguments(Reading((known and known.parameters) or {}).members(call))
    out.end_call()


def _element(name: str) -> Generator[None, str, Element]:
    """Read what is in an element whose tag has been read, and all elements within it, up to its
    closing tag; raises NotACall.
    """
    open_ones = [Element(name)]
    while True:
        open_ones[-1].text += yield from until(MARK)
        tag = yield from _tag()
        if not tag.startswith("/"):
            inner = Element(tag)
            open_ones[-1].inner.append(inner)
            open_ones.append(inner)
            if len(open_ones) > DEEPEST:
                raise NotACall
        elif not _closes(tag, open_ones):
            raise NotACall
        elif len(open_ones) == 1:
            return open_ones[0]
        else:
            open_ones.pop()


def _closes(tag: str, open_ones: Sequence[Element]) -> bool:
    """Whether a closing tag closes the last of the open elements; a wrong name is no matter
    within a call.
    """
    return tag[1:] == open_ones[-1].name or (len(open_ones) > 1 and tag[1:] != END)


def _tag() -> TextSteps:
    """Returns what is in a tag; raises NotACall."""
    yield from literal((yield), "<")
    tag = yield from until(">")
    if not tag.strip(SPACE):
        raise NotACall
    return tag


@dataclass(frozen=True, slots=True)
class Reading:
    """Turns elements into JSON, as schemas within `root` have them."""

    root: Schema

    def members(self, one: Element, schema: object = None) -> str:
        """An element whose inner elements are members; `schema` defaults to the root."""
        named: dict[str, list[Element]] = {}
        text = TEXT
        for inner in one.inner:
            named.setdefault(inner.name, []).append(inner)
        while text in named:
            text = f"${text}"
        parts = self._parts(self.root if schema is None else schema)
        found = {key: self._member(parts, key, several) for key, several in named.items()}
        if one.text.strip(SPACE) and schema is not None:
            found[text] = json_text(one.text)
        return f"{{{', '.join(f'{json_text(key)}: {value}' for key, value in found.items())}}}"

    def _member(self, parts: Sequence[Schema], key: str, several: Sequence[Element]) -> str:
        known = [part["properties"] for part in parts if "properties" in part]
        named = [one[key] for one in known if isinstance(one, Mapping) and key in one]
        others = [one["additionalProperties"] for one in parts if "additionalProperties" in one]
        schema: object = next(iter([*named, *others]), {})
        values = [self._value(one, schema) for one in several]
        return values[0] if len(values) == 1 else f"[{', '.join(values)}]"

    def _value(self, one: Element, schema: object) -> str:
        types, parts = accepted_types(schema, self.root), self._parts(schema)
        if not one.inner and (one.text.strip(SPACE) or str in types):
            return json_value_of(one.text, types)
        is_list = list in types and (dict not in types or _are_items(one))
        if not one.inner and not {list, dict} & types:
            return json_value_of(one.text, types)
        if not is_list:
            return self.members(one, schema)
        items: object = next((part["items"] for part in parts if "items" in part), {})
        return f"[{', '.join(self._value(inner, items) for inner in one.inner)}]"

    def _parts(self, schema: object) -> Sequence[Schema]:
        """The schema, those that it refers to, and their parts, each once: references may lead
        in circles.
        """
        parts, seen, waiting = list[Schema](), set[int](), [schema]
        while waiting:
            one = waiting.pop()
            if not isinstance(one, Mapping) or id(one) in seen:
                continue
            seen.add(id(one))
            parts.append(one)
            several = (one.get(key) for key in (*SEVERAL, "allOf"))
            inner = [each for some in several if isinstance(some, list) for each in some]
            waiting += [*reversed(inner), resolve_reference(one, self.root)]
        return parts


def _are_items(one: Element) -> bool:
    return bool(one.inner) and all(inner.name == "item" for inner in one.inner)


ARGUMENTS = TextArguments(f"{MARK}<", ">", f"{MARK}</", behind_name=">")


def write(tools: CallableTools) -> Format:
    """Format a section."""
    return seq(tokens(OPENS), "\n", tools.calls(_written), tokens(CLOSES))


def _written(name: str, schema: Schema) -> Format:
    return seq(f'{INVOKE}"{name}">', ARGUMENTS.of(schema), f"{MARK}</{END}>\n")


MINIMAX_M3 = Dialect(
    minimax_m3,
    write,
    (OPENS, CLOSES, MARK),
    (MARK,),
    first_letters=MARK[0],
    start_markers=(OPENS,),
)
