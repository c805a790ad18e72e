"""Dialect: how one family of models writes tool calls, to parse them and to build grammars."""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from api.tools.call_formats import CallableTools
from api.tools.parsing.output import Parser
from engine.grammars.structural_tags import Format

SHORT_ID = 9  # letters and digits: Mistral's templates refuse all others
ALPHANUMERIC = string.ascii_letters + string.digits


def long_id(name: str = "", number: int = 0) -> str:
    """A new call id, as OpenAI's are."""
    del name, number
    return f"call_{secrets.token_hex(12)}"


def short_id(name: str = "", number: int = 0) -> str:
    """A new call id that Mistral's templates accept."""
    del name, number
    return "".join(secrets.choice(ALPHANUMERIC) for _ in range(SHORT_ID))


@dataclass(frozen=True, slots=True)
class UnmarkedCalls:
    """Grammars for calls that begin an answer without a marker. `begins` gives a regular
    expression of all possible beginnings of a call of one function. Text must not have
    `excluded_markers`.
    """

    begins: Callable[[str], str]
    write: Callable[[CallableTools], Format]
    excluded_markers: tuple[str, ...] = ()


class WritesMessages(Protocol):
    """Builds the grammar of an answer in channels."""

    def __call__(self, tools: CallableTools, *, begun: bool) -> Format:
        """`begun`: the answer begins in the middle of a message."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The syntax in which one family of models writes tool calls.

    `parser` parses calls. `write` builds the grammar of an answer that consists of calls; None:
    such models call before the part of the answer that a grammar constrains. `markers` are
    detokenized as text even if they are special tokens. Calls begin with one of
    `first_letters`; None: with anything.

    `start_markers`: all markers that a call may begin with; empty: text may look like a call.
    `text_markers` must not be special tokens, as `write` spells them as text. `wrapper_tokens`
    are special tokens that such models put around their text. `messages` builds the grammar of
    an answer in channels. `unmarked`: grammars for calls without a marker. `strict_parser`
    parses only calls that a grammar can express, while `parser` accepts more.

    `beside_calls`: what may follow the first of `start_markers` instead of a call.
    `before_calls`: what such models write between an empty text and calls.

    A chat template belongs to this dialect if it has all `template_signs` and no
    `foreign_signs`. `new_id` makes an id that the template accepts, from the function's name
    and the number of the call in the conversation.
    """

    parser: Parser
    write: Callable[[CallableTools], Format] | None
    markers: tuple[str, ...]
    template_signs: tuple[str, ...]
    foreign_signs: tuple[str, ...] = ()
    new_id: Callable[[str, int], str] = long_id
    first_letters: str | None = "<"
    start_markers: tuple[str, ...] = ()
    text_markers: tuple[str, ...] = ()
    wrapper_tokens: tuple[str, ...] = ()
    messages: WritesMessages | None = None
    unmarked: UnmarkedCalls | None = None
    strict_parser: Parser | None = None
    beside_calls: Format | None = None
    before_calls: Format | None = None
