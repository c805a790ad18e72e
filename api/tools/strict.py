"""An answer that is any text, in which calls of strict functions have what these take. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from api.tools.dialects.dialect import Bare, Dialect
from api.tools.schemas import parameters_of
from api.tools.wishes import ToolUse
from api.tools.writing import ANY_OBJECT, Offer, parted, row
from api.wire import WireError
from engine.grammars.structural_tags import (
    AnyText,
    Either,
    Format,
    Tag,
    TriggeredTags,
    structural_tag_of,
)
from engine.request import Grammar

MOST_TOGETHER = 100
"""Calls behind one mark: any number is too much for xgrammar, in a tag that has no end."""


def strict_of(use: ToolUse) -> Collection[str]:
    """Names of functions that are."""
    return [name for name, one in use.offered.items() if one.strict]


@dataclass(frozen=True, slots=True)
class Aloud:
    """How reasoning is part of what a grammar holds. Special tokens that are `plain` stand in
    the text. Or the answer is `channels`, and has begun in the middle of a message, or not.
    """

    plain: Sequence[str] = ()
    channels: bool = False
    begun: bool = False


NO_REASONING = Aloud()


def text_with_calls(
    use: ToolUse, dialect: Dialect, template: str, aloud: Aloud = NO_REASONING
) -> Grammar | None:
    """Any text, and where calls begin in it those of what was offered, as the dialect writes
    them. Functions that are not strict take any object, custom tools their text. None: it is
    not certain where calls begin. Raises WireError.
    """
    bound = use.customs.union(strict_of(use))
    schemas = {
        name: parameters_of(one) if name in bound else ANY_OBJECT
        for name, one in use.offered.items()
    }
    try:
        if aloud.channels and dialect.messages is not None:
            text = dialect.messages(Offer(schemas, use.parallel, template), begun=aloud.begun)
        elif dialect.opens and not aloud.channels:
            text = _behind_marks(dialect, Offer(schemas, use.parallel, template), aloud.plain)
        elif dialect.bare is not None and not aloud.channels and not aloud.plain:
            text = _at_the_beginning(dialect.bare, Offer(schemas, use.parallel, template))
        else:
            return None
        return Grammar("structural_tag", structural_tag_of(text))
    except RecursionError as error:
        raise WireError("tools: a schema is nested too deeply", "tools") from error


def _behind_marks(dialect: Dialect, offer: Offer, plain: Sequence[str]) -> Format:
    assert dialect.write is not None
    calls = dialect.write(replace(offer, parallel=False))
    if offer.parallel and not isinstance(calls, Either):  # which have one mark together
        calls = dialect.write(replace(offer, most=MOST_TOGETHER))
    mark, behind = parted(calls)
    others = *dialect.around, *plain
    return TriggeredTags(
        (mark, *others),
        (Tag(mark, behind, ""), *(Tag(one, row(), "") for one in others)),
        stop_after_first=not (offer.parallel or others),
        excludes=tuple(one for one in dialect.opens if one != mark),
    )


def _at_the_beginning(bare: Bare, offer: Offer) -> Format:
    """Text that begins as no call does, or calls."""
    begins = "|".join(f"(?:{bare.begins(name)})" for name in offer.functions)
    return Either((AnyText(bare.others, begins), bare.write(offer)))
