"""Limits to what clients' JSON may consist of, counted before it is parsed: the parser holds up
the event loop, in whatever thread it runs.
"""

from typing import Any

import numpy as np

from api.wire import WireError

MOST_BRACKETS = 500_000  # opening ones; those within texts are counted too
MOST_COMMAS = 1_500_000  # those within texts too
MOST_KEYS = 200_000  # of all objects together: a key takes as long as ten numbers
MOST_BIASES, MOST_ALLOWED, MOST_STOP_IDS = 1 << 16, 1 << 19, 1 << 14
MOST_STRINGS = 4_096  # stop strings, or bad words
MOST_LISTED = 10_000  # ways of a choice; grammars of more are refused
COUNTED_FROM = 3 * MOST_KEYS  # bytes; a smaller body has fewer of each
BRACKET, COMMA, COLON, QUOTE, BACKSLASH, SPACE = b'{,:"\\ '
Letters = np.ndarray[Any, np.dtype[np.uint8]]
CASE = 0x20  # the bit in which [ differs from {


def refuse_crowded(data: bytes, what: str = "The body has") -> None:
    """Refuse JSON of too many parts, and say `what` has them; raises WireError."""
    if len(data) < COUNTED_FROM:
        return
    letters = np.frombuffer(data, np.uint8)
    for parts, most, count in (
        ("opening brackets", MOST_BRACKETS, _num_brackets),
        ("commas", MOST_COMMAS, _num_commas),
        ("keys", MOST_KEYS, _num_keys),
    ):
        if count(letters) > most:
            raise WireError(f"{what} more than {most} {parts}")


def _num_brackets(letters: Letters) -> int:
    return int(np.count_nonzero((letters | CASE) == BRACKET))


def _num_commas(letters: Letters) -> int:
    return int(np.count_nonzero(letters == COMMA))


def _num_keys(letters: Letters) -> int:
    """At least as many as there are keys, and hardly more: a colon behind a key follows its
    quote, or space. In JSON within a text, that quote has a backslash, of which a key that ends
    with one has two.
    """
    colons, before = letters[3:] == COLON, letters[2:-1]
    if np.count_nonzero(colons) <= MOST_KEYS:
        return 0  # few enough, wherever they are
    quoted = colons & (before == QUOTE)
    in_text = (letters[1:-2] == BACKSLASH) & (letters[:-3] != BACKSLASH)
    keys = (quoted & ~in_text) | (colons & (before <= SPACE))
    return int(np.count_nonzero(keys))
