"""Lark grammars embedded in other formats: in a JSON string, or up to an end marker."""

from collections.abc import Collection, Iterator

from engine.errors import GrammarRefused
from engine.grammars.lark import Written, quoted, written_of
from engine.grammars.lark_leaves import ANYTHING
from engine.grammars.lark_reading import read_lark
from engine.grammars.quoted_regex import can_begin

START, BACKSLASH = "start", "\\"
RECURS = "lark: a grammar that recurs cannot be held where a text stands as it is"
SWALLOWS = (
    "lark: a grammar that recurs cannot be held in a JSON string where something that may end "
    "there can go on with a quote, a backslash or a control character"
)


def text_in_json(source: str) -> str:
    """A JSON string with a text of this grammar; raises GrammarRefused."""
    written, terminals = _written(source, as_json=True)
    quote = quoted('"')
    if not written.recurs:
        whole = f"start: WHOLE\nWHOLE: {quote} {written.start} {quote}"
        return "\n".join([whole, *written.lines, *terminals, ""])
    lines = [*written.lines, *terminals]
    for name in _names_of(written):
        if can_begin(
            "\n".join([f'start: X\nX: {name} & ({name} "\\\\" {ANYTHING})', *lines, ""])
        ):
            raise GrammarRefused(SWALLOWS)
    return "\n".join([f"start: {quote} {written.start} {quote}", *lines, ""])


def text_until(source: str, ends: Collection[str]) -> str:
    """A text of this grammar, up to and including the first end; raises GrammarRefused."""
    written, terminals = _written(source, as_json=False)
    if written.recurs:
        raise GrammarRefused(RECURS)
    end = f"({' | '.join(map(quoted, ends))})" if ends else quoted("")
    lazy = "[lazy]" if ends else ""
    whole = f"start{lazy}: WHOLE\nWHOLE: {written.start} {end}"
    return "\n".join([whole, *written.lines, *terminals, ""])


def _written(source: str, *, as_json: bool) -> tuple[Written, Collection[str]]:
    found = read_lark(source, as_json=as_json)
    return written_of(found.rules, START), found.terminals.values()


def _names_of(written: Written) -> Iterator[str]:
    return (one for one in written.terminals if one[0].isupper())
