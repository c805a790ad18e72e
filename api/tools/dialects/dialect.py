"""What a form of calls is to whoever reads answers, or has them written."""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from api.tools.parsing.output import Parser
from api.tools.writing import Offer
from engine.grammars.structural_tags import Format

SHORT_ID = 9  # letters, and no more: Mistral's templates refuse all others
ALPHANUMERIC = string.ascii_letters + string.digits


def long_id(name: str = "", number: int = 0) -> str:
    """A new name for a call, as OpenAI has them."""
    del name, number
    return f"call_{secrets.token_hex(12)}"


def short_id(name: str = "", number: int = 0) -> str:
    """A new name for a call, as Mistral's templates have them."""
    del name, number
    return "".join(secrets.choice(ALPHANUMERIC) for _ in range(SHORT_ID))


@dataclass(frozen=True, slots=True)
class Bare:
    """How calls are held that begin an answer without a mark: `begins` is an expression of all
    beginnings of a call of one function. No text has the marks `others`.
    """

    begins: Callable[[str], str]
    write: Callable[[Offer], Format]
    others: tuple[str, ...] = ()


class WritesMessages(Protocol):
    """Writes answers in channels."""

    def __call__(self, offer: Offer, *, begun: bool) -> Format:
        """`begun`: it goes on in the middle of a message."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of models writes calls.

    `markers` are read also where they are special tokens. `write` is what a grammar leaves of
    an answer that is calls; None: such models make them before what a grammar holds. Marks of
    calls begin with one of the letters `begins`; None: they need no mark.

    What calls begin with, for whoever reads them, `opens` has all of; none: a text may begin
    like a call. Of marks that are `spelt` none may be a special token, or `write` writes what
    the model does not. `around` are special tokens that such models put around their text.
    `messages` is what a grammar leaves of an answer in channels. `bare`: how calls are held
    where a text may begin like one. `firm` reads no calls but those that can be held, if the
    `parser` reads others.

    Templates for it have all of `signs`, and nothing of what is `foreign` to it. `new_id` is
    a name that they will take back, for a call of this function with this number in the
    conversation.
    """

    parser: Parser
    write: Callable[[Offer], Format] | None
    markers: tuple[str, ...]
    signs: tuple[str, ...]
    foreign: tuple[str, ...] = ()
    new_id: Callable[[str, int], str] = long_id
    begins: str | None = "<"
    opens: tuple[str, ...] = ()
    spelt: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    messages: WritesMessages | None = None
    bare: Bare | None = None
    firm: Parser | None = None
