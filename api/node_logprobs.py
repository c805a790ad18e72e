"""Log-probabilities between nodes and proxies: as vLLM writes and reads them. Pure.

vLLM names a token by `token_id:N` where there is no text, and tells a prompt's as one object
for each token: `{"N": {"logprob", "rank", "decoded_token"}}`, null for the first, the token
itself before the likeliest. Newer versions have `token_id` and `rank` beside the name.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from api.wire import UNREADABLE, WireError
from engine.request import Logprob, Logprobs

LEAST = -9999.0
"""What minus infinity becomes where there is no such number: in JSON. vLLM has the same."""
TOKEN_ID = "token_id:"
LONGEST_PACKED = 1_024


class Top(msgspec.Struct, frozen=True):
    """One of the likeliest."""

    token: str = ""
    logprob: float | None = None
    bytes: tuple[int, ...] | None = None
    token_id: int | msgspec.UnsetType = msgspec.UNSET
    rank: int | msgspec.UnsetType | None = msgspec.UNSET


class Entry(Top, frozen=True):
    """One token, and the likeliest in its place."""

    top_logprobs: tuple[Top, ...] = ()


class Content(msgspec.Struct, frozen=True):
    """One entry for each token."""

    content: tuple[Entry, ...] | None = None


class PromptLogprob(msgspec.Struct, frozen=True):
    """What one place of a prompt says of one token."""

    logprob: float | None
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = Sequence[Mapping[int, PromptLogprob] | None]


def sayable(logprob: float | None) -> float:
    """A number that JSON has: not below LEAST, and not what is no number at all."""
    return logprob if logprob is not None and logprob > LEAST else LEAST


def finite(places: Sequence[Logprobs]) -> tuple[Logprobs, ...]:
    """The same, so that JSON can hold all of it."""
    return tuple(
        tuple(Logprob(one.token, sayable(one.logprob), one.rank) for one in place)
        for place in places
    )


def content_of(places: Sequence[Logprobs]) -> Content:
    """Of generated tokens, as vLLM's token-id endpoint has them."""
    return Content(tuple(_entry(*place) for place in places))


def read_content(content: Content | None) -> tuple[Logprobs, ...]:
    """The way back; raises WireError for a token that has no id."""
    return tuple(_place(entry) for entry in (content and content.content) or ())


def prompt_of(
    places: Sequence[Logprobs], text_of: Callable[[int], str | None] = lambda token: None
) -> PromptLogprobs:
    """Of a prompt; there is nothing to say of its first token.

    At each place the token itself comes first, also where it is among the likeliest.
    """
    return [
        None,
        *(
            {
                one.token: PromptLogprob(sayable(one.logprob), one.rank, text_of(one.token))
                for one in place
            }
            for place in places
        ),
    ]


def read_prompt(told: PromptLogprobs | None) -> tuple[Logprobs, ...]:
    """The way back."""
    return tuple(_prompt_place(one) for one in told or () if one)


def pack(places: Sequence[Logprobs]) -> bytes:
    """The first place, for a hand-over; nothing where there is none, or too much of it."""
    if not places or len(places[0]) > LONGEST_PACKED:
        return b""
    return msgspec.msgpack.encode(places[0])


def unpack(data: bytes, likeliest: int) -> tuple[Logprobs, ...]:
    """The way back; nothing where it is not of a token and so many of the likeliest."""
    try:
        place = msgspec.msgpack.decode(data, type=Logprobs) if data else ()
    except UNREADABLE:
        return ()
    return (place,) if place and len(place) == 1 + likeliest else ()


def _entry(first: Logprob, *likeliest: Logprob) -> Entry:
    tops = tuple(Top(_name(one), sayable(one.logprob)) for one in likeliest)
    return Entry(_name(first), sayable(first.logprob), top_logprobs=tops)


def _name(one: Logprob) -> str:
    return f"{TOKEN_ID}{one.token}"


def _place(entry: Entry) -> Logprobs:
    """A rank that is not told follows from the order; at least that it is."""
    ranked = sorted(entry.top_logprobs, key=lambda top: -sayable(top.logprob))
    tops = [Logprob(_id(top), sayable(top.logprob), n) for n, top in enumerate(ranked, 1)]
    token = _id(entry)
    rank = next((top.rank for top in tops if top.token == token), len(tops) + 1)
    return (Logprob(token, sayable(entry.logprob), entry.rank or rank), *tops)


def _id(top: Top) -> int:
    if isinstance(top.token_id, int):
        return top.token_id
    name, _, number = top.token.partition(":")
    if name + ":" != TOKEN_ID or not number.isdecimal():
        raise WireError(f"{top.token!r} is no token id", "logprobs")
    return int(number)


def _prompt_place(told: Mapping[int, PromptLogprob]) -> Logprobs:
    first, *others = (
        Logprob(token, sayable(one.logprob), one.rank or 0) for token, one in told.items()
    )
    among = [first] if first.rank <= len(others) + 1 else []
    return (first, *sorted([*among, *others], key=lambda one: one.rank))
