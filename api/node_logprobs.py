"""Log-probabilities between nodes and proxies: as vLLM writes and reads them. Pure.

vLLM 0.32 tells a token by `token_id` and `rank`; before, and in text answers without text, by
the name `token_id:N`. Both are written, either is read. It tells a prompt's as one object for
each token: `{"N": {"logprob", "rank", "decoded_token"}}`, null for the first, the token itself
before the likeliest.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from api.wire import UNREADABLE, WireError
from engine.request import LARGEST_TOKEN, Logprob, Logprobs, TokenId

MIN_LOGPROB = -9999.0
"""Minus infinity in JSON, which has no such number. vLLM uses the same value."""
TOKEN_ID = "token_id:"
LONGEST_PACKED = 1_024
LONGEST_ID = len(str(LARGEST_TOKEN))


class NodeTopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a position."""

    token: str = ""
    logprob: float | None = None
    bytes: tuple[int, ...] | None = None
    token_id: TokenId | msgspec.UnsetType = msgspec.UNSET
    rank: int | msgspec.UnsetType | None = msgspec.UNSET


class NodeTokenLogprob(NodeTopLogprob, frozen=True):
    """A token, and the likeliest tokens at its position."""

    top_logprobs: tuple[NodeTopLogprob, ...] = ()


class NodeLogprobs(msgspec.Struct, frozen=True):
    """One entry for each token."""

    content: tuple[NodeTokenLogprob, ...] | None = None


class PromptLogprob(msgspec.Struct, frozen=True):
    """The log-probability of one token at one position of a prompt."""

    logprob: float | None
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = Sequence[Mapping[TokenId, PromptLogprob] | None]


def json_logprob(logprob: float | None) -> float:
    """A number that JSON can hold: MIN_LOGPROB at least, also for NaN and None."""
    return logprob if logprob is not None and logprob > MIN_LOGPROB else MIN_LOGPROB


def finite_logprobs(places: Sequence[Logprobs]) -> tuple[Logprobs, ...]:
    """The log-probabilities, with only numbers that JSON can hold."""
    return tuple(
        tuple(Logprob(one.token, json_logprob(one.logprob), one.rank) for one in place)
        for place in places
    )


def node_logprobs_of(places: Sequence[Logprobs]) -> NodeLogprobs:
    """The log-probabilities of generated tokens, as vLLM's token-id endpoint writes them."""
    return NodeLogprobs(tuple(_entry(*place) for place in places))


def read_node_logprobs(
    content: NodeLogprobs | None, likeliest: int | None = None
) -> tuple[Logprobs, ...]:
    """The reverse of `node_logprobs_of`; raises WireError for a token without an id.

    `likeliest`: how many were requested per token, as vLLM lists the sampled token among them
    even if it is not one of them. None or -1: all that there are.
    """
    most = None if likeliest is None or likeliest < 0 else 1 + likeliest
    return tuple(_place(entry)[:most] for entry in (content and content.content) or ())


def prompt_logprobs_of(
    places: Sequence[Logprobs], text_of: Callable[[int], str | None] = lambda token: None
) -> PromptLogprobs:
    """The log-probabilities of a prompt, as vLLM writes them; null for its first token.

    At each position the token itself comes first, also where it is among the likeliest.
    """
    return [
        None,
        *(
            {
                one.token: PromptLogprob(
                    json_logprob(one.logprob), one.rank, text_of(one.token)
                )
                for one in place
            }
            for place in places
        ),
    ]


def read_prompt_logprobs(told: PromptLogprobs | None) -> tuple[Logprobs, ...]:
    """The reverse of `prompt_logprobs_of`."""
    return tuple(_prompt_place(one) for one in told or () if one)


def pack(places: Sequence[Logprobs]) -> bytes:
    """Pack the first position, for a KV ticket; empty if there is none or it is too long."""
    if not places or len(places[0]) > LONGEST_PACKED:
        return b""
    return msgspec.msgpack.encode(places[0])


def unpack(data: bytes, token: int, likeliest: int) -> tuple[Logprobs, ...]:
    """The reverse of `pack`; empty unless it is of `token`, with `likeliest` more entries, and
    its numbers can be what they should be.
    """
    try:
        place = msgspec.msgpack.decode(data, type=Logprobs) if data else ()
    except UNREADABLE:
        return ()
    if not place or len(place) != 1 + likeliest or place[0].token != token:
        return ()
    return (place,) if all(map(_is_possible, place)) else ()


def _is_possible(one: Logprob) -> bool:
    """A logarithm may be above 0 by its rounding; NaN is below nothing."""
    in_range = 0 <= one.token <= LARGEST_TOKEN and 1 <= one.rank <= LARGEST_TOKEN
    return in_range and one.logprob < 1


def _entry(first: Logprob, *likeliest: Logprob) -> NodeTokenLogprob:
    tops = tuple(NodeTopLogprob(*_told(one)) for one in likeliest)
    return NodeTokenLogprob(*_told(first), top_logprobs=tops)


def _told(one: Logprob) -> tuple[str, float, None, int, int]:
    return f"{TOKEN_ID}{one.token}", json_logprob(one.logprob), None, one.token, one.rank


def _place(entry: NodeTokenLogprob) -> Logprobs:
    """The token's rank; a missing one is at least what the order of the likeliest implies."""
    ranked = sorted(entry.top_logprobs, key=lambda top: -json_logprob(top.logprob))
    tops = [Logprob(_id(top), json_logprob(top.logprob), n) for n, top in enumerate(ranked, 1)]
    token = _id(entry)
    rank = next((top.rank for top in tops if top.token == token), len(tops) + 1)
    return (Logprob(token, json_logprob(entry.logprob), entry.rank or rank), *tops)


def _id(top: NodeTopLogprob) -> int:
    if isinstance(top.token_id, int):
        return top.token_id
    name, _, number = top.token.partition(":")
    if name + ":" == TOKEN_ID and number.isdecimal() and len(number) <= LONGEST_ID:
        token = int(number)
        if token <= LARGEST_TOKEN:
            return token
    raise WireError(f"{top.token!r} is no token id", "logprobs")


def _prompt_place(told: Mapping[int, PromptLogprob]) -> Logprobs:
    first, *others = (
        Logprob(token, json_logprob(one.logprob), one.rank or 0) for token, one in told.items()
    )
    among = [first] if first.rank <= len(others) + 1 else []
    return (first, *sorted([*among, *others], key=lambda one: one.rank))
