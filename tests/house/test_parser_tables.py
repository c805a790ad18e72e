"""The tables of parsers in the HTTP reference: each parser is there, and reads its example."""

import json
import re
from collections.abc import Iterator
from typing import get_args

import pytest

from api.reasoning.formats import ReasoningParser
from api.tools.dialects.known import DIALECTS, OTHER_NAMES, ToolCallParser, find_dialect
from tests.fakes.tools import offered, read, tool
from tests.house.test_docs import REFERENCE, SPAN

PAGE = (REFERENCE / "api.md").read_text()
PROPERTIES = {"a": {"type": "integer"}, "b": {"type": "string"}}
PARAMETERS = {"type": "object", "properties": PROPERTIES}
COLUMN = re.compile(r"(?<!\\)\|")  # an escaped bar is part of a cell
WHOLE_CALL = re.compile(r"\bf\b.*\ba\b.*1")
IN_PIECES = {"deepseek_v3", "ernie45", "hunyuan_a13b", "olmo3"}
"""Parsers whose example is told in words, or as another's."""


def table(flag: str) -> Iterator[tuple[list[str], list[str]]]:
    """The names in the first column of a flag's table, and what is quoted in the second."""
    body = PAGE.partition(f"\n| `{flag}` |")[2].partition("\n\n")[0]
    for line in body.splitlines()[2:]:
        _, names, quoted, *_ = (one.replace("\\|", "|") for one in COLUMN.split(line))
        yield SPAN.findall(names), SPAN.findall(quoted)


CALLS = [
    (name, text)
    for names, quoted in table("--tool-call-parser")
    for name in names
    for text in quoted
    if name not in IN_PIECES and WHOLE_CALL.search(text)
]


def test_each_parser_of_calls_is_in_the_table() -> None:
    names = [one for row, _ in table("--tool-call-parser") for one in row]
    assert sorted(names) == sorted([*DIALECTS, *OTHER_NAMES])
    assert {name for name, _ in CALLS} == {*names} - IN_PIECES


def test_each_parser_of_reasoning_is_in_the_table() -> None:
    names = [one for row, _ in table("--reasoning-parser") for one in row]
    assert sorted(names) == sorted(get_args(ReasoningParser))


@pytest.mark.parametrize(("name", "text"), CALLS)
def test_a_parser_reads_its_example(name: ToolCallParser, text: str) -> None:
    dialect = find_dialect(name, None)
    assert dialect
    found = read(dialect.parser, [text], offered([tool(one, PARAMETERS) for one in "fg"]))
    assert not found.content
    assert {one for one, _, _ in found.calls} <= {"f", "g"}
    assert all(whole for _, _, whole in found.calls)
    arguments = {
        key: value for _, one, _ in found.calls for key, value in json.loads(one).items()
    }
    assert arguments in ({"a": 1}, {"a": 1, "b": "x"})
