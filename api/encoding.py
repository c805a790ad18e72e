"""Texts to tokens, as long as they can be and no longer, where that holds up nobody."""

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from api.errors import ContextTooLong
from api.text.tokenizing import TextCodec, by_far
from api.text_requests import Tokens

SHORT = 2_000  # characters or bytes; encoded before a thread would have begun
MOST_TOKENS = 1 << 20  # of a text, while nobody says its model's context
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Fit:
    """What is known of a long text before it is encoded: it is cut to its last `most` tokens,
    and what is left is refused where it does not fit `into` so many. None: that is not known.
    """

    most: int | None = None
    into: int | None = None

    @classmethod
    def of(cls, size: int, wanted: int | None, context: Callable[[], int | None]) -> "Fit":
        """Of a text of that `size`, of which the last `wanted` tokens are to be left, if any;
        -1: as many as the `context` takes.
        """
        if size <= SHORT:
            return cls()
        most = context()
        if wanted is None or (wanted < 0 and most is None):
            return cls(into=most or MOST_TOKENS)
        if wanted < 0 or most is None or wanted <= most:
            return cls(most=most if wanted < 0 else wanted)
        return cls(wanted, most)


def encoded(codec: TextCodec, text: str, fit: Fit, *, special: bool = False) -> Tokens:
    """`special`: with the tokens that go around a text. Raises ContextTooLong."""
    if fit.most is not None:
        text = codec.last(text, fit.most)
    must_fit(codec, text, fit.into)
    return codec.encode(text, special_tokens=special)


def of_turns(codec: TextCodec, text: str, fit: Fit) -> Tokens:
    """The same for a conversation, whose turns may be known where it is worth a look."""
    if len(text) <= SHORT or fit.most is not None or (turns := codec.turns) is None:
        return encoded(codec, text, fit)
    tokens = array("i")
    for said in turns.tokens(text, lambda part: encoded(codec, part, fit)):
        tokens.extend(said)
        if fit.into is not None and by_far(len(tokens), fit.into):
            raise _too_long(fit.into)
    return tuple(tokens)


def must_fit(codec: TextCodec, text: str, context: int | None) -> None:
    """A text that cannot fit is not even encoded: that takes time, and far more memory than
    the text does. Raises ContextTooLong.
    """
    if context is not None and codec.outgrows(text, context):
        raise _too_long(context)


def _too_long(context: int) -> ContextTooLong:
    return ContextTooLong(
        f"This model's maximum context length is {context} tokens, and the prompt alone "
        f"has more than twice as many.",
        context=context,
    )


async def aside(size: int, work: Callable[[], Done]) -> Done:
    """In a thread where it would hold up all streams."""
    return work() if size <= SHORT else await asyncio.to_thread(work)
