"""GBNF, the grammars of llama.cpp and xgrammar, parsed into rules and written as Lark. Pure.

    root ::= "yes" | "no" [.!]{1,3} | item ("," item)*     # a comment
    item ::= [a-z]+

Strings and classes know the escapes \\n \\r \\t \\xHH \\uHHHH \\UHHHHHHHH, and a backslash
before itself, a quote or a bracket; `.` is any character. An answer is what `root` describes.
xgrammar's look-ahead and macros are not supported. `engine/grammars/lark.py` writes the Lark.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import GrammarRefused
from engine.grammars.lark import Choice, Node, Ref, Repeat, Row, Text, lark_of

MOST_RULES, DEEPEST, MOST_COUNTS, LARGEST_REPEAT = 1_000, 64, 8, 100_000
TOKEN = re.compile(
    r"""(?:\s|\#[^\n]*)*(?:
    (?P<rule>[A-Za-z_][\w-]*)(?:\s|\#[^\n]*)*::= | (?P<name>[A-Za-z_][\w-]*)
    | "(?P<text>(?:[^"\\\n]|\\.)*)" | \[(?P<set>(?:[^\]\\\n]|\\.)*)\]
    | \{\s*(?P<least>\d{1,9})\s*(?P<comma>,?)\s*(?P<most>\d{0,9})\s*\}
    | (?P<sign>[|()*+?.]) | (?P<end>\Z) )""",
    re.VERBOSE,
)
GBNF = re.compile(r"^\s*[A-Za-z_][\w-]*\s*::=", re.MULTILINE)
LARK = re.compile(r"^\s*(?:%llguidance\b|start\b[^:\n]*:)", re.MULTILINE)
ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([^xuU]))|([^\\])", re.S
)
PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
LAST_CHARACTER, SURROGATES = 0x10FFFF, range(0xD800, 0xE000)


def ebnf_to_lark(source: str) -> str:
    """Convert GBNF, and return Lark unchanged; raises GrammarRefused for invalid GBNF."""
    return source if LARK.search(source) and not GBNF.search(source) else gbnf_to_lark(source)


def gbnf_to_lark(source: str) -> str:
    """Convert GBNF; raises GrammarRefused if it is invalid, or describes no text at all."""
    return lark_of(_Reader(source).rules(), "root")


@dataclass(slots=True)
class _Reader:
    source: str
    at: int = 0
    depth: int = 0
    kind: str = ""
    match: re.Match[str] = field(init=False)

    def __post_init__(self) -> None:
        self._next()

    def rules(self) -> Mapping[str, Node]:
        rules: dict[str, Node] = {}
        while self.kind != "end":
            if self.kind != "rule":
                raise self._wrong("a rule, NAME ::= ...")
            name = self.match["rule"]
            if name in rules:
                raise GrammarRefused(f"ebnf: rule {name} is there twice")
            if len(rules) == MOST_RULES:
                raise GrammarRefused(f"ebnf has more than {MOST_RULES} rules")
            self._next()
            rules[name] = self._choice()
        return rules

    def _choice(self) -> Node:
        options = [self._row()]
        while self._is("|"):
            self._next()
            options.append(self._row())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _row(self) -> Node:
        items: list[Node] = []
        while self.kind not in ("rule", "end") and not self._is("|") and not self._is(")"):
            items.append(self._counted(self._item()))
        return items[0] if len(items) == 1 else Row(tuple(items))

    def _counted(self, node: Node) -> Node:
        for _ in range(MOST_COUNTS):
            if self.kind == "least":
                node = self._repeat(node)
            elif self.kind == "sign" and self.match["sign"] in COUNTS:
                least, most = COUNTS[self.match["sign"]]
                node = Repeat(node, least, most)
            else:
                return node
            self._next()
        raise self._wrong(f"at most {MOST_COUNTS} counts behind one another")

    def _repeat(self, node: Node) -> Node:
        least, most = int(self.match["least"]), self.match["most"]
        largest = int(most) if most else None if self.match["comma"] else least
        if max(least, largest or 0) > LARGEST_REPEAT or (
            largest is not None and largest < least
        ):
            raise self._wrong(f"counts that grow, and up to {LARGEST_REPEAT}")
        if largest == 0:
            return Row(())  # llguidance refuses to repeat anything zero times
        return Repeat(node, least, largest)

    def _item(self) -> Node:
        kind, match = self.kind, self.match
        if self._is("("):
            return self._group()
        if kind == "name":
            node: Node = Ref(match["name"])
        elif kind == "text":
            node = Text("".join(map(chr, self._characters(match["text"]))))
        elif kind == "set":
            node = Text(self._set(match["set"]), is_regex=True)
        elif self._is("."):
            node = Text("(?s:.)", is_regex=True)
        else:
            raise self._wrong("a string, a class, a name or a group")
        self._next()
        return node

    def _group(self) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._wrong(f"groups within at most {DEEPEST} others")
        self._next()
        node = self._choice()
        if not self._is(")"):
            raise self._wrong("the end of a group")
        self.depth -= 1
        self._next()
        return node

    def _set(self, inner: str) -> str:
        """A character class in Rust's regex syntax, with every character by its number."""
        negated = inner.startswith("^")
        pairs: list[str] = []
        characters = self._marked(inner.removeprefix("^"))[::-1]
        while characters:
            first, _ = last, _ = characters.pop()
            if len(characters) > 1 and characters[-1] == (ord("-"), False):
                characters.pop()
                last, _ = characters.pop()
            if last < first:
                raise self._wrong("a class whose ranges grow")
            pairs.append(f"\\x{{{first:x}}}-\\x{{{last:x}}}")
        if not pairs:
            return "(?s:.)" if negated else "[^\\x{0}-\\x{10ffff}]"
        return f"[{'^' if negated else ''}{''.join(pairs)}]"

    def _characters(self, inner: str) -> list[int]:
        return [code for code, _ in self._marked(inner)]

    def _marked(self, inner: str) -> list[tuple[int, bool]]:
        """Each character, and whether it was escaped by a backslash."""
        found, at = list[tuple[int, bool]](), 0
        while at < len(inner):
            match = ESCAPE.match(inner, at)
            if match is None:
                raise self._wrong("a known escape")
            *numbers, escaped, plain = match.groups()
            number = next((int(one, 16) for one in numbers if one), None)
            if number is None:
                number = ord(plain or PLAIN_ESCAPES.get(escaped, escaped))
            if number > LAST_CHARACTER or number in SURROGATES:
                raise self._wrong("escapes that are characters")
            found.append((number, plain is None))
            at = match.end()
        return found

    def _is(self, sign: str) -> bool:
        return self.kind == "sign" and self.match["sign"] == sign

    def _next(self) -> None:
        match = TOKEN.match(self.source, self.at)
        if match is None:
            raise self._wrong("a string, a class, a name or a sign of GBNF")
        kinds = ("rule", "name", "text", "set", "least", "sign")
        self.kind = next((kind for kind in kinds if match[kind] is not None), "end")
        self.match, self.at = match, match.end()

    def _wrong(self, wanted: str) -> GrammarRefused:
        line = self.source.count("\n", 0, self.at) + 1
        return GrammarRefused(f"ebnf, line {line}: expected {wanted}")
