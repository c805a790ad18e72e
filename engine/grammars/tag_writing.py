"""Structural tags written as llguidance's Lark. Pure."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from llguidance import LLMatcher

from engine.errors import GrammarRefused
from engine.grammars.exclusive_ways import with_exclusive_ways
from engine.grammars.explaining import TOO_DEEP, is_too_deep
from engine.grammars.gbnf import ebnf_to_lark
from engine.grammars.lark import quoted, regex
from engine.grammars.numbers import with_exact_numbers
from engine.grammars.schemas import without_annotations
from engine.grammars.structural_tags import (
    AnyText,
    ConstString,
    Ebnf,
    Either,
    Format,
    JsonSchema,
    LarkText,
    Optional,
    Plus,
    Regex,
    Repeated,
    Sequential,
    Star,
    Tag,
    TagsWithSeparator,
    Token,
    TriggeredTags,
    read_structural_tag,
)
from engine.grammars.texts import text_in_json, text_until

ANYTHING = "/(?s:.*)/"
OPTIONS = "x-guidance"
WHITESPACE = r" |\r?\n[ \t]{0,32}"
"""Between tokens of JSON: a blank, or a line break and indent; with more, models may get stuck.
"""
MOST_PARTS = 2_000
LARGEST_REPEAT = 10_000
DEEPEST_GROUPS = 8
"""Groups within groups in one rule; llguidance reads about 30 at most."""
TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"')

Ends = tuple[str, ...]
NO_ENDS: Ends = ()
Find = Callable[[str], int | None]
"""Finds the special token with this text, if there is one."""


def no_token(text: str) -> None:
    """A Find for an unknown model: no special tokens."""
    del text


def structural_tag_to_grammar(source: str, find: Find = no_token) -> str:
    """Convert a structural tag; raises GrammarRefused."""
    writer = _Writer(find)
    try:
        start = writer.write(read_structural_tag(source), NO_ENDS)
    except RecursionError as error:
        raise GrammarRefused("structural_tag: formats too deep within each other") from error
    lines = [name + said[1:] for said, name in writer.names.items()]
    lark = "\n".join([f"start: {start}", *lines, ""])
    if not writer.grammars:
        return LLMatcher.grammar_from_lark(lark)
    first = {"name": "structural_tag", "lark_grammar": lark}
    return json.dumps({"grammars": [first, *writer.grammars]})


@dataclass(slots=True)
class _Writer:
    """`write` returns an expression; with `ends`, its last part is one of them. Equal lines are
    written once.
    """

    find: Find
    names: dict[str, str] = field(default_factory=dict)  # of lines, by kind and content
    grammars: list[dict[str, str]] = field(default_factory=list)

    def write(self, one: Format, ends: Ends) -> str:
        match one:
            case AnyText(excludes, unlike):
                return self._until(_free_text(excludes, unlike), ends)
            case Regex(pattern):
                return self._until(regex(pattern), ends)
            case LarkText(lark, False):
                return self._grammar(text_until(lark, ends if all(ends) else NO_ENDS))
            case Either(elements):
                return self._flat(_either(self.write(element, ends) for element in elements))
            case Sequential(elements):
                return self._sequence(elements, ends)
            case TriggeredTags():
                return self._triggered(one, ends)
            case Optional() | Plus() | Star() | Repeated():
                return self._repeated(one) + _then(ends)
        return self._simple(one) + _then(ends)

    def _simple(self, one: Format) -> str:
        match one:
            case ConstString(value):
                return quoted(value)
            case Token(text):
                token = self.find(text)
                return quoted(text) if token is None else f"<[{token}]>"
            case JsonSchema():
                return self._json(one)
            case Ebnf(grammar):
                return self._grammar(ebnf_to_lark(grammar))
            case LarkText(lark):
                return self._grammar(text_in_json(lark))
            case Tag(begin, content):
                return f"{quoted(begin)} {self.write(content, one.ends)}"
            case TagsWithSeparator():
                return self._separated(one)
        raise AssertionError(f"no such format: {one}")

    def _grammar(self, lark: str) -> str:
        name = f"g{len(self.grammars)}"
        self.grammars.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def _json(self, one: JsonSchema) -> str:
        if one.style != "json" or one.any_order:
            raise GrammarRefused("structural_tag: style and any_order are not supported")
        schema = one.json_schema
        if is_too_deep(schema):
            raise GrammarRefused(f"structural_tag: a schema's {TOO_DEEP}")
        if isinstance(schema, dict):
            plain = with_exact_numbers(with_exclusive_ways(without_annotations(schema)))
            schema = {OPTIONS: {"whitespace_pattern": WHITESPACE}} | plain
        return self._rule(f"%json {json.dumps(schema)}")

    def _text(self, excludes: Sequence[str], ends: Ends) -> str:
        return self._until(_free_text(excludes), ends)

    def _until(self, terminal: str, ends: Ends) -> str:
        """A terminal up to the first of the ends, if there are any."""
        if not all(ends) or not ends:
            return self._terminal(terminal)
        text = self._terminal(f"({terminal}) {_either(map(quoted, ends))}")
        return self._rule(text, "[lazy]")

    def _sequence(self, elements: Sequence[Format], ends: Ends) -> str:
        parts, rest = list[str](), list(elements)
        while rest:
            one = rest.pop(0)
            if not rest:
                parts.append(self.write(one, ends))
            elif isinstance(one, AnyText | TriggeredTags) or _is_open(one):
                parts.append(self.write(one, self._beginning(rest)))
            else:
                parts.append(self.write(one, NO_ENDS))
        return self._flat(f"({' '.join(parts)})") if parts else f'""{_then(ends)}'

    def _beginning(self, rest: list[Format]) -> Ends:
        """What ends free text: the text with which `rest` begins, which is removed from it.
        None if a special token ends it.
        """
        match rest[0]:
            case ConstString(value) if value:
                rest.pop(0)
                return (value,)
            case Token(text):
                if self.find(text) is not None:
                    return NO_ENDS
                rest.pop(0)
                return (text,)
            case Tag(begin) as tag if begin:
                rest[0] = Tag("", tag.content, tag.end)
                return (begin,)
        what = "const_string, token or tag"
        raise GrammarRefused(f"structural_tag: free text is last, or before {what}")

    def _separated(self, one: TagsWithSeparator) -> str:
        tag = self._rule(_either(self.write(tag, NO_ENDS) for tag in one.tags))
        many = tag if one.stop_after_first else f"{tag} ({quoted(one.separator)} {tag})*"
        return f"({many})" if one.at_least_one else f"({many})?"

    def _repeated(self, one: Optional | Plus | Star | Repeated) -> str:
        if isinstance(one.content, AnyText):
            raise GrammarRefused("structural_tag: any_text is any number of times already")
        body = f"({self.write(one.content, NO_ENDS)})"
        match one:
            case Repeated(0, 0):
                return '""'
            case Repeated(least, most):
                if least < 0 or (most != -1 and most < least):
                    raise GrammarRefused("structural_tag: repeat needs 0 <= min <= max")
                if max(least, most) > LARGEST_REPEAT:
                    raise GrammarRefused(f"structural_tag: repeat has at most {LARGEST_REPEAT}")
                return f"{body}{{{least},{'' if most == -1 else most}}}"
            case Plus():
                return f"{body}+"
            case Star():
                return f"{body}*"
        return f"{body}?"

    def _triggered(self, one: TriggeredTags, ends: Ends) -> str:
        if not one.tags or not all(one.triggers):
            raise GrammarRefused("structural_tag: triggered_tags need tags and triggers")
        whole = self._rule(_either(self.write(tag, NO_ENDS) for tag in one.tags))
        free = self._text((*one.triggers, *one.excludes), ends)
        found = self._rule(_either(self._found(one, one.triggers)))
        if one.stop_after_first:
            if one.at_least_one:
                return whole + _then(ends)
            return f"({found}{_then(ends)} | {free})"
        begin = f"{whole} " if one.at_least_one else ""
        return f"({begin}({found})* {free})"

    def _found(self, one: TriggeredTags, triggers: Iterable[str]) -> Iterator[str]:
        """Free text up to a trigger, and the rest of a tag that begins with it."""
        for tag in one.tags:
            mine = [trigger for trigger in triggers if tag.begin.startswith(trigger)]
            if len(mine) != 1:
                raise GrammarRefused(
                    f"structural_tag: {len(mine)} triggers begin {tag.begin!r}"
                )
            head = self._until(_free_text(one.excludes), (mine[0],))
            rest = self.write(Tag(tag.begin.removeprefix(mine[0]), tag.content, tag.end), ())
            yield f"{head} {rest}"
            if (token := self.find(mine[0])) is not None:
                free = self._text((*one.triggers, *one.excludes), NO_ENDS)
                yield f"{free} <[{token}]> {rest}"

    def _flat(self, said: str) -> str:
        """The expression, or the name of a rule for it where groups in it stand too deep."""
        return self._rule(said) if _depth(said) > DEEPEST_GROUPS else said

    def _terminal(self, body: str) -> str:
        return self._line("T", f": {body}")

    def _rule(self, body: str, attributes: str = "") -> str:
        return self._line("r", f"{attributes}: {body}")

    def _line(self, kind: str, said: str) -> str:
        if len(self.names) == MOST_PARTS:
            raise GrammarRefused(f"structural_tag has more than {MOST_PARTS} parts")
        return self.names.setdefault(kind + said, f"{kind}{len(self.names)}")


def _is_open(one: Format) -> bool:
    """Whether it is free text, which ends where what follows it begins."""
    return isinstance(one, LarkText) and not one.json


def _free_text(excludes: Sequence[str], unlike: str = "") -> str:
    if not all(excludes):
        raise GrammarRefused("structural_tag: excludes must not have an empty string")
    bars = [f"~({ANYTHING} {_either(map(quoted, excludes))} {ANYTHING})"] if excludes else []
    bars += [f"~({regex(unlike)} {ANYTHING})"] if unlike else []
    return " & ".join([ANYTHING, *bars])


def _either(options: Iterable[str]) -> str:
    ways = list(dict.fromkeys(options))
    if not ways:
        raise GrammarRefused("structural_tag: a choice without options")
    return f"({' | '.join(ways)})"


def _depth(said: str) -> int:
    """How deep groups stand in groups; regular expressions have names here."""
    bare = TEXTS.sub("", said)
    return max(accumulate((letter == "(") - (letter == ")") for letter in bare), default=0)


def _then(ends: Ends) -> str:
    return f" {_either(map(quoted, ends))}" if any(ends) else ""
