"""Rules of a context-free grammar, and how they are written as llguidance's Lark. Pure.

llguidance splits text into terminals, longest match first, before it parses: a terminal that
could match the beginning of the next one would lose texts of the language. So a rule without
recursion becomes one terminal, a regular expression, which loses nothing. In recursive rules
each run without recursion becomes one terminal, and there the longest match applies. Rules that
can never end are removed, so that no answer runs into a dead end.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llguidance import regex_to_lark

from engine.errors import GrammarRefused

ENDS_IN_ESCAPE = re.compile(r"(?<!\\)(\\\\)*\\\Z")


@dataclass(frozen=True, slots=True)
class Text:
    """A string, or a regular expression in Rust's syntax."""

    value: str
    is_regex: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """Another rule, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence of nodes."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several nodes."""

    options: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node repeated; `most` None: without limit."""

    item: "Node"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Terminal:
    """A part without recursion, as Lark text."""

    lark: str


Node = Text | Ref | Row | Choice | Repeat | Terminal


def quoted(text: str) -> str:
    """A string in Lark's syntax, in which llguidance takes no DEL as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def regex(pattern: str) -> str:
    """A regular expression of Rust's in Lark's syntax; raises GrammarRefused."""
    if ENDS_IN_ESCAPE.search(pattern):  # regex_to_lark would drop the backslash
        raise GrammarRefused("regex: it ends in an escape")
    return f"/{regex_to_lark(pattern, use_ascii='')}/" if pattern else quoted("")


@dataclass(frozen=True, slots=True)
class Written:
    """The `lines` of rules, and the expression for the root. `terminals` are the names of the
    runs without recursion in recursive rules.
    """

    start: str
    lines: Sequence[str]
    terminals: Sequence[str]
    recurs: bool


def lark_of(rules: Mapping[str, Node], root: str) -> str:
    """Lark text that starts at `root`; raises GrammarRefused."""
    written = written_of(rules, root)
    return "\n".join([f"start: {written.start}", *written.lines, ""])


def written_of(rules: Mapping[str, Node], root: str) -> Written:
    """The rules as Lark lines; raises GrammarRefused."""
    if root not in rules:
        raise GrammarRefused(f"ebnf has no rule {root}")
    named = {name for node in rules.values() for name in _names(node)}
    if missing := named.difference(rules):
        raise GrammarRefused(f"ebnf: rule {min(missing)} is not there")
    ends = _closure(rules, _can_end)
    if root not in ends:
        raise GrammarRefused("ebnf: no text that root describes ever ends")
    kept = {name: _pruned(node, ends) for name, node in rules.items() if name in ends}
    return _Writer(kept, _closure(kept, _is_flat)).write(root)


def skipping(node: Node, skipped: Node) -> Node:
    """The same node with `skipped`, which is ignored text, after each terminal."""
    match node:
        case Terminal():
            return Row((node, skipped))
        case Row(items):
            return Row(tuple(skipping(one, skipped) for one in items))
        case Choice(options):
            return Choice(tuple(skipping(one, skipped) for one in options))
        case Repeat(item, least, most):
            return Repeat(skipping(item, skipped), least, most)
    return node


def _names(node: Node) -> Iterator[str]:
    match node:
        case Ref(name):
            yield name
        case Row(parts) | Choice(parts):
            for part in parts:
                yield from _names(part)
        case Repeat(item):
            yield from _names(item)


def _closure(
    rules: Mapping[str, Node], holds: Callable[[Node, set[str]], bool]
) -> frozenset[str]:
    """The rules for which `holds` can be derived, as a least fixed point."""
    found, names, grown = set[str](), list(rules), True
    while grown:
        names.reverse()  # chains of rules run in either direction
        before = len(found)
        for name in names:
            if name not in found and holds(rules[name], found):
                found.add(name)
        grown = len(found) > before
    return frozenset(found)


def _can_end(node: Node, ends: set[str]) -> bool:
    match node:
        case Ref(name):
            return name in ends
        case Row(items):
            return all(_can_end(item, ends) for item in items)
        case Choice(options):
            return any(_can_end(option, ends) for option in options)
        case Repeat(item, least):
            return least == 0 or _can_end(item, ends)
    return True


def _is_flat(node: Node, flat: set[str] | frozenset[str]) -> bool:
    return all(name in flat for name in _names(node))


def _pruned(node: Node, ends: frozenset[str]) -> Node:
    """`node`, which can end, without alternatives that lead to rules that never end."""
    match node:
        case Row(items):
            return Row(tuple(_pruned(item, ends) for item in items))
        case Choice(options):
            left = [one for one in options if _can_end(one, set(ends))]
            return Choice(tuple(_pruned(option, ends) for option in left))
        case Repeat(item, least, most):
            if not _can_end(item, set(ends)):
                return Row(())
            return Repeat(_pruned(item, ends), least, most)
    return node


@dataclass(slots=True)
class _Writer:
    rules: Mapping[str, Node]
    flat: frozenset[str]
    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def write(self, root: str) -> Written:
        """Write all rules under new names: theirs may be keywords, or differ in case only."""
        for number, name in enumerate(self.rules):
            self.names[name] = f"R{number}" if name in self.flat else f"r{number}"
        for name, node in self.rules.items():
            body = self._flat(node) if name in self.flat else self._deep(node)
            self.lines.append(f"{self.names[name]}: {body}")
        own = [line.partition(":")[0] for line in self.lines]
        return Written(self.names[root], self.lines, own, root not in self.flat)

    def _flat(self, node: Node) -> str:
        match node:
            case Text(value, True):
                return regex(value)
            case Text(value):
                return quoted(value)
            case Terminal(lark):
                return lark
            case Ref(name):
                return self.names[name]
            case Row(items):
                return f"({' '.join(map(self._flat, items))})" if items else quoted("")
            case Choice(options):
                return f"({' | '.join(map(self._flat, options))})"
            case Repeat(item, least, most):
                return _repeated(self._flat(item), least, most)

    def _deep(self, node: Node) -> str:
        """A node of a recursive rule: its longest runs without recursion become terminals."""
        match node:
            case Ref(name):
                return self.names[name]
            case Row(items):
                return f"({' '.join(self._stretches(items))})"
            case Choice(options):
                flat = tuple(one for one in options if _is_flat(one, self.flat))
                ways = [self._deep(one) for one in options if one not in flat]
                if flat:
                    ways.append(self._terminal(Choice(flat)))
                return f"({' | '.join(ways)})"
            case Repeat(item, least, most):
                return _repeated(self._deep(item), least, most)
        raise AssertionError("text does not recur")

    def _stretches(self, items: tuple[Node, ...]) -> Iterator[str]:
        stretch: list[Node] = []
        for item in items:
            if _is_flat(item, self.flat):
                stretch.append(item)
                continue
            if stretch:
                yield self._terminal(Row(tuple(stretch)))
            stretch = []
            yield self._deep(item)
        if stretch:
            yield self._terminal(Row(tuple(stretch)))

    def _terminal(self, node: Node) -> str:
        name = f"T{len(self.lines)}"
        self.lines.append(f"{name}: {self._flat(node)}")
        return name


def _repeated(body: str, least: int, most: int | None) -> str:
    if least <= 1 and most is None:
        return f"({body}){'+' if least else '*'}"
    return f"({body}){{{least},{'' if most is None else most}}}"
