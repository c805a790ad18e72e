"""Parses Lark, as llguidance reads it, into rules, to embed its texts in other formats. Pure.

llguidance splits a text into terminals, longest match first, and looks one byte ahead: a text's
last terminal could match what follows the text, or escapes in it. So the rules are rewritten
(`engine/grammars/lark.py`), as one terminal if they are not recursive.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from engine.errors import GrammarRefused
from engine.grammars.lark import Choice, Node, Ref, Repeat, Row, Terminal, skipping
from engine.grammars.lark_leaves import (
    ANY_QUOTED,
    ANYTHING,
    COMMON,
    STRING,
    quoted_leaf,
)
from engine.grammars.quoted_regex import quoted_regex

Said = TypeVar("Said")
MOST_RULES = 1_000
NO_OPTIONS = re.compile(r"\s*\{\s*\}")
TOKEN = re.compile(
    rf"""(?:(?:\#|//)[^\n]*|[ \t\r])*(?:(?P<line>\n)
    | (?P<range>{STRING}\s*\.\.\s*{STRING}) | (?P<string>{STRING}i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*) | (?P<word>%[a-z]+) | (?P<special><[^<>\s]+>)
    | (?P<rule>[!?_]*[a-z][_a-z0-9-]*) | (?P<terminal>_?[A-Z][_A-Z0-9-]*) | (?P<number>\d+)
    | (?P<sign>->|\.\.|.) | (?P<end>\Z))""",
    re.VERBOSE | re.DOTALL,
)
COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
LARGEST_REPEAT = 10_000
ONLY = "is not supported in a text within another form"


@dataclass(slots=True)
class LarkRules:
    """Rules by name, and the lines that define their terminals."""

    rules: dict[str, Node] = field(default_factory=dict)
    terminals: dict[str, str] = field(default_factory=dict)


def read_lark(source: str, *, as_json: bool = False) -> LarkRules:
    """Parse Lark; with `as_json` its texts are as between the quotes of a JSON string. Raises
    GrammarRefused.
    """
    return _Reader(source, as_json).read()


@dataclass(slots=True)
class _Reader:
    source: str
    as_json: bool
    at: int = 0
    kind: str = "line"
    said: str = ""
    found: LarkRules = field(default_factory=LarkRules)
    ignored: list[str] = field(default_factory=list)

    def read(self) -> LarkRules:
        self._next()
        while self.kind != "end":
            if self.kind == "line":
                self._next()
            elif self.kind == "word":
                self._statement()
            else:
                self._definition()
        if self.ignored:
            skipped = Repeat(Terminal(f"({' | '.join(self.ignored)})"), 0, None)
            rules = self.found.rules
            rules.update({name: skipping(one, skipped) for name, one in rules.items()})
        return self.found

    def _next(self) -> None:
        token = TOKEN.match(self.source, self.at)
        assert token is not None
        assert token.lastgroup is not None
        self.at, self.kind, self.said = token.end(), token.lastgroup, token[token.lastgroup]

    def _wrong(self, what: str) -> GrammarRefused:
        line = self.source.count("\n", 0, self.at - len(self.said)) + 1
        return GrammarRefused(f"lark: line {line}: {what}, not {self.said!r}")

    def _takes(self, sign: str) -> bool:
        if (taken := self.kind in ("sign", "number") and self.said == sign) is True:
            self._next()
        return taken

    def _need(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._wrong(f"{sign!r}")

    def _statement(self) -> None:
        word = self.said
        if word == "%llguidance" and (none := NO_OPTIONS.match(self.source, self.at)):
            self.at = none.end()
            self._next()
            return
        self._next()
        if word == "%ignore":
            self.ignored.append(self._terminals())
        elif word == "%import":
            self._import()
        else:
            raise GrammarRefused(f"lark: {word} {ONLY}")

    def _import(self) -> None:
        if self.said != "common":
            raise self._wrong("common")
        self._next()
        if self._takes("."):
            name = self._word("terminal")
            alias = self._word("terminal") if self._takes("->") else name
            self._common(name, alias)
            return
        self._need("(")
        while not self._takes(")"):
            name = self._word("terminal")
            self._common(name, name)
            self._takes(",")

    def _word(self, kind: str) -> str:
        if self.kind != kind:
            raise self._wrong(f"the name of a {kind}")
        said = self.said
        self._next()
        return said

    def _common(self, name: str, alias: str) -> None:
        line = f"%import common.{name} -> {_own(alias)}"
        if self.as_json and name in COMMON:
            line = f"{_own(alias)}: /{quoted_regex(COMMON[name])}/"
        self._define(self.found.terminals, alias, line)

    def _define(self, where: dict[str, Said], name: str, said: Said) -> None:
        if name in where:
            raise GrammarRefused(f"lark: {name} is there twice")
        if len(where) == MOST_RULES:
            raise GrammarRefused(f"lark has more than {MOST_RULES} names of a kind")
        where[name] = said

    def _definition(self) -> None:
        kind, name = self.kind, self.said.lstrip("!?")
        if kind not in ("rule", "terminal"):
            raise self._wrong("a rule or a terminal")
        self._next()
        if self._takes("["):
            if self.said != "capture":
                raise GrammarRefused(f"lark: [{self.said}] {ONLY}")
            while self.kind not in ("line", "end") and self.said != "]":
                self._next()
            self._need("]")
        if self._takes("."):
            self._word("number")
        self._need(":")
        if kind == "rule":
            self._define(self.found.rules, name, self._choice())
        else:
            self._define(self.found.terminals, name, f"{_own(name)}: {self._terminals()}")

    def _options(self) -> Iterator[None]:
        """Yield before each option; options may be on separate lines."""
        yield
        while self._more_lines() or self.said == "|":
            self._need("|")
            yield

    def _more_lines(self) -> bool:
        """Whether the next line continues with another option; if so, advance to it."""
        ahead = re.compile(r"(?:\s|(?:#|//)[^\n]*)*\|").match(self.source, self.at)
        if self.kind != "line" or not ahead:
            return False
        self.at = ahead.end() - 1
        self._next()
        return True

    def _choice(self) -> Node:
        ways = tuple(self._row() for _ in self._options())
        return ways[0] if len(ways) == 1 else Choice(ways)

    def _row(self) -> Node:
        items = list[Node]()
        while self.kind not in ("line", "end") and self.said not in ("|", ")", "]", "->"):
            items.append(self._counted(self._node()))
        if self._takes("->"):
            self._word(self.kind)
        return Row(tuple(items))

    def _node(self) -> Node:
        if self._takes("("):
            return self._closed(self._choice(), ")")
        if self._takes("["):
            return Repeat(self._closed(self._choice(), "]"), 0, 1)
        if self.kind == "rule":
            return Ref(self._word("rule").lstrip("!?"))
        return Terminal(self._leaf())

    def _closed(self, node: Node, sign: str) -> Node:
        while self.kind == "line":
            self._next()
        self._need(sign)
        return node

    def _counted(self, node: Node) -> Node:
        if self.kind == "sign" and (count := COUNTS.get(self.said)):
            self._next()
            return Repeat(node, *count)
        bounds = self._bounds()
        return Repeat(node, *bounds) if bounds else node

    def _bounds(self) -> tuple[int, int | None] | None:
        """The bounds of {2}, {2,}, {,3}, {2,3}, ~2 or ~2..3, if one of these follows."""
        most: int | None
        if self._takes("~"):
            least = self._number()
            most = self._number() if self._takes("..") else least
        elif self._takes("{"):
            least = 0 if self.said == "," else self._number()
            most = least
            if self._takes(","):
                most = None if self.said == "}" else self._number()
            self._need("}")
        else:
            return None
        if not least <= (least if most is None else most) <= LARGEST_REPEAT:
            raise GrammarRefused(f"lark: repetitions are 0 to {LARGEST_REPEAT}, least first")
        return least, most

    def _number(self) -> int:
        return int(self._word("number")[:9])

    def _terminals(self) -> str:
        """The same for terminals alone, as the text to write."""
        return " | ".join(self._all_of() for _ in self._options())

    def _all_of(self) -> str:
        said = list[str]()
        while self.kind not in ("line", "end") and self.said not in ("|", ")", "]", "->"):
            if self._takes("&"):
                said.append("&")
                continue
            one = self._one_of()
            if self.kind == "sign" and self.said in COUNTS:
                one += self.said
                self._next()
            elif bounds := self._bounds():
                one += f"{{{bounds[0]},{'' if bounds[1] is None else bounds[1]}}}"
            said.append(one)
        if self._takes("->"):
            self._word(self.kind)
        return " ".join(said) or '""'

    def _one_of(self) -> str:
        if self._takes("~"):
            anything = ANY_QUOTED if self.as_json else ANYTHING
            return f"({anything} & ~{self._one_of()})"
        for opens, closes, count in (("(", ")", ""), ("[", "]", "?")):
            if self._takes(opens):
                inner = self._terminals()
                while self.kind == "line":
                    self._next()
                self._need(closes)
                return f"({inner}){count}"
        return self._leaf()

    def _leaf(self) -> str:
        kind, said = self.kind, self.said
        if kind == "terminal":
            self._next()
            return _own(said)
        if kind not in ("string", "regex", "range"):
            if kind in ("word", "special") or said == "@":
                raise GrammarRefused(f"lark: {said} {ONLY}")
            raise self._wrong("a name, a string or a regular expression")
        self._next()
        return quoted_leaf(kind, said) if self.as_json else said


def _own(name: str) -> str:
    """A name for a terminal that differs from those of all written rules."""
    return f"X_{name}"
