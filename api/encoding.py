"""Tokenizes prompts: truncated or refused by length first, and off the event loop if long."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from api.bodies import Side
from api.errors import ContextTooLong
from api.text.tokenizing import LONG, TextCodec, far_exceeds
from api.text_requests import Tokens
from api.threads import run_in_thread

INLINE_SIZE = 2_000  # characters or bytes; encoding that many is quicker than starting a thread
MOST_TOKENS = 1 << 20  # of a text, while its model's context length is unknown
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """How a long text is cut before it is encoded, at its `side`: to `truncate_to` tokens. It
    is refused if more than `max_tokens` tokens are left, which are the model's `context`, if
    that is known. None: no such limit.
    """

    truncate_to: int | None = None
    max_tokens: int | None = None
    context: int | None = None
    side: Side = "left"

    @classmethod
    def of(
        cls, size: int, wanted: int | None, context: int | None, side: Side | None = None
    ) -> "LengthLimit":
        """The limit for a text of `size` characters and a client's `truncate_prompt_tokens`,
        `wanted`; -1: as many as the `context` takes. None as its `truncation_side`: left.
        """
        side = side or "left"
        if size <= INLINE_SIZE:
            return cls()
        if wanted is None or (wanted < 0 and context is None):
            return cls(max_tokens=context or MOST_TOKENS, context=context)
        if wanted < 0 or context is None or wanted <= context:
            return cls(truncate_to=context if wanted < 0 else wanted, side=side)
        return cls(wanted, context, context=context, side=side)


def encode_text(
    codec: TextCodec, text: str, fit: LengthLimit, *, special: bool = False
) -> Tokens:
    """Encode a text; `special`: with special tokens around it. Raises ContextTooLong."""
    if fit.truncate_to is not None:
        keep = codec.keep_first if fit.side == "right" else codec.keep_last
        text = keep(text, fit.truncate_to)
    check_length(codec, text, fit)
    return codec.encode(text, special_tokens=special)


def encode_chat(codec: TextCodec, text: str, fit: LengthLimit) -> Tokens:
    """Encode a rendered chat; if it is long, turns that were encoded before are looked up.

    Raises ContextTooLong.
    """
    if (
        len(text) <= INLINE_SIZE
        or fit.truncate_to is not None
        or (turns := codec.turns) is None
    ):
        return encode_text(codec, text, fit)
    tokens = array("i")
    for said in turns.tokens(text, lambda part: encode_text(codec, part, fit)):
        tokens.extend(said)
        if fit.max_tokens is not None and far_exceeds(len(tokens), fit.max_tokens):
            raise far_too_long(fit.max_tokens, fit.context)
    return tuple(tokens)


def check_length(codec: TextCodec, text: str, fit: LengthLimit) -> None:
    """Refuse a text that cannot fit without encoding all of it, which would take far more
    memory than the text does. Raises ContextTooLong.
    """
    if fit.max_tokens is not None and codec.far_exceeds(text, fit.max_tokens):
        raise far_too_long(fit.max_tokens, fit.context)


def far_too_long(most: int, context: int | None) -> ContextTooLong:
    """The refusal of a prompt that has far more than `most` tokens, which were not counted: the
    model's context has that many, if it is known.
    """
    if context is None:
        said = f"The text has more than twice {most} tokens, which is too much to tokenize."
    else:
        said = (
            f"This model's maximum context length is {most} tokens, and the prompt alone "
            f"has more than twice as many."
        )
    return ContextTooLong(said, context=most)


async def run_off_loop(
    size: int, work: Callable[[], Done], codec: TextCodec | None = None
) -> Done:
    """Run the work in a thread if its `size` is large: inline, it would delay all streams. Much
    work for a `codec` waits for a thread of its own: it takes so long that it would leave none
    to others.

    Raises TooBusy if there is no thread for it.
    """
    if size <= INLINE_SIZE:
        return work()
    return await run_in_thread(work, codec.long_work if codec and size > LONG else None)
