"""Structural tags for vLLM nodes: without our extensions. Pure."""

from typing import Any

import msgspec

OURS, BARS, PLAIN = "lark", "unlike", "any_text"
SCHEMA = "json_schema"  # keys in it are not ours


class UnsupportedTag(ValueError):
    """A custom tool's input has a grammar, which only our nodes can enforce."""


def without_extensions(source: str) -> str:
    """The same tag without our extensions; raises UnsupportedTag.

    Text that must not begin like a call may do so then. Structured text behind a mark is still
    enforced, and a call written as text is parsed as always.
    """
    if f'"{OURS}"' not in source and f'"{BARS}"' not in source:
        return source
    return msgspec.json.encode(_without(msgspec.json.decode(source))).decode()


def _without(part: Any) -> Any:  # noqa: ANN401  JSON
    if isinstance(part, list):
        return [_without(one) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == OURS:
        raise UnsupportedTag("a grammar of a custom tool cannot be told to a node of vLLM")
    bars = BARS if part.get("type") == PLAIN else None
    return {
        key: value if key == SCHEMA else _without(value)
        for key, value in part.items()
        if key != bars
    }
