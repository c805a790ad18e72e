"""Tools to offer, answers that call them, and what is read out of an answer, put together."""

import json
from collections.abc import Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from api.text.tokenizing import TextCodec, text_codec
from api.tools.dialects.known import DIALECTS
from api.tools.parsing.output import (
    CallArguments,
    CallEnded,
    CallStarted,
    ContentText,
    Parser,
    ParserEvent,
)
from api.tools.parsing.reader import CallReader
from api.tools.tool_choice import OfferedFunctions, read_tools
from tests.fakes.text import TEMPLATE, byte_level

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
Call = tuple[str, str, bool]
"""A function's name, its arguments, and whether the call is whole."""


def tool(name: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """As clients send them."""
    function: dict[str, Any] = {"name": name}
    if parameters is not None:
        function["parameters"] = dict(parameters)
    return {"type": "function", "function": function}


TOOLS = [tool("weather", WEATHER), tool("clock")]


def offered(tools: Sequence[Mapping[str, Any]] = TOOLS) -> OfferedFunctions:
    """What a door makes of them."""
    use = read_tools(tools, None, None)
    assert use
    return use.offered


@dataclass
class Read:
    """An answer, read to its end."""

    content: str
    calls: list[Call]


def read(
    parser: Parser,
    pieces: Sequence[str],
    tools: OfferedFunctions | None = None,
    *,
    cut: bool = False,
    only: Container[str] | None = None,
) -> Read:
    """Read an answer that comes in these pieces; `cut`: no more were allowed."""
    reader = CallReader(parser, offered() if tools is None else tools, only)
    said = [one for piece in pieces for one in reader.read(piece)]
    return put_together([*said, *reader.finish(cut=cut)])


def put_together(said: Sequence[ParserEvent]) -> Read:
    """What all of it comes to."""
    content, calls = "", list[Call]()
    for one in said:
        match one:
            case ContentText(text):
                content += text
            case CallStarted(name):
                calls.append((name, "", False))
            case CallArguments(text):
                name, before, _ = calls[-1]
                calls[-1] = name, before + text, False
            case CallEnded():
                calls[-1] = *calls[-1][:2], True
    return Read(content, calls)


def read_alike(parser: Parser, text: str, *cuts: Sequence[str]) -> Read:
    """The same as whole, letter by letter and in all these pieces; whole calls have objects."""
    whole = read(parser, [text])
    for pieces in ([*text], *cuts):
        assert read(parser, pieces) == whole
    for _, arguments, is_whole in whole.calls:
        assert not is_whole or isinstance(json.loads(arguments), dict)
    return whole


def claims(template: str) -> set[str]:
    """Names of the dialects that a chat template could be for, whichever would come first."""
    return {
        name
        for name, one in DIALECTS.items()
        if all(sign in template for sign in one.template_signs)
        and not any(sign in template for sign in one.foreign_signs)
    }


def cut(text: str) -> "st.SearchStrategy[list[str]]":
    """All ways to cut a text into pieces, empty ones among them."""
    places = st.lists(st.integers(0, len(text)), max_size=8).map(sorted)
    return places.map(
        lambda at: [text[a:b] for a, b in zip([0, *at], [*at, None], strict=True)]
    )


def special(*words: str, end: str = "<tool_call>", template: str = TEMPLATE) -> TextCodec:
    """A tokenizer that has these as special tokens, and ends prompts with `end`; so the model
    may be known by it.
    """
    codec: Any = byte_level(template + end)
    copy = deepcopy(codec.tokenizer)
    copy.add_special_tokens({"additional_special_tokens": list(words)})
    return text_codec(copy)


def read_cut(parser: Parser, text: str) -> Read:
    """Whole, and cut anywhere: alike."""
    return read_alike(
        parser, text, *((text[:place], text[place:]) for place in range(len(text)))
    )
