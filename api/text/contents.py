"""How a chat template reads what a message says: as a text, or as a list of parts.

Templates of models for text and images read lists, and most of them texts, too. One that does
not looks for parts among a text's letters, and leaves all of it out without a word.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from api.errors import BadRequest

Messages = Sequence[Mapping[str, Any]]
PROBE = "What does a template make of this?"


def wants_parts(render: Callable[[Messages], str]) -> bool:
    """Whether the template leaves out a text, but not the same text in a list of parts.

    `render` raises BadRequest for what the template refuses.
    """

    def shows(content: object) -> bool:
        with suppress(BadRequest):
            return PROBE in render([{"role": "user", "content": content}])
        return False

    return not shows(PROBE) and shows(_parts(PROBE))


def in_parts(messages: Messages) -> Messages:
    """The messages with each text in a list of parts."""
    texts = (one.get("content") for one in messages)
    return [
        {**one, "content": _parts(text)} if isinstance(text, str) else one
        for one, text in zip(messages, texts, strict=True)
    ]


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}] if text else []
