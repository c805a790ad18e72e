"""Limits to what clients' JSON may consist of, counted before it is parsed: the parser holds up
the event loop, in whatever thread it runs.
"""

from typing import Any

import numpy as np

from api.wire import MOST_LEVELS, TOO_DEEP, WireError

MOST_BRACKETS = 500_000  # opening ones; those within texts are counted too
MOST_COMMAS = 1_500_000  # those within texts too
MOST_KEYS = 200_000  # of all objects together: a key takes as long as ten numbers
MOST_BIASES, MOST_ALLOWED, MOST_STOP_IDS = 1 << 16, 1 << 19, 1 << 14
MOST_STRINGS = 4_096  # stop strings, or bad words
MOST_LISTED = 10_000  # ways of a choice; grammars of more are refused
COUNTED_FROM = 3 * MOST_KEYS  # bytes; a smaller body has fewer of each
OPENING, CLOSING, COMMA, COLON, QUOTE, BACKSLASH, SPACE = b'{},:"\\ '
Letters = np.ndarray[Any, np.dtype[np.uint8]]
CASE = 0x20  # the bit in which [ and ] differ from { and }


def refuse_crowded(data: bytes, what: str = "The body has") -> None:
    """Refuse JSON of too many parts, and say `what` has them; raises WireError. Raises
    RecursionError if it is nested too deeply, which parsers find at a depth of their own.
    """
    if len(data) >= COUNTED_FROM:
        _refuse_many(np.frombuffer(data, np.uint8), what)
    if data.count(b"[") + data.count(b"{") > MOST_LEVELS and _num_levels(data) > MOST_LEVELS:
        raise RecursionError(TOO_DEEP)


def _refuse_many(letters: Letters, what: str) -> None:
    for parts, most, count in (
        ("opening brackets", MOST_BRACKETS, _num_brackets),
        ("commas", MOST_COMMAS, _num_commas),
        ("keys", MOST_KEYS, _num_keys),
    ):
        if count(letters) > most:
            raise WireError(f"{what} more than {most} {parts}")


def _num_levels(data: bytes) -> int:
    """How deep objects and lists are nested, the outermost included."""
    letters = np.frombuffer(data.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    folded = letters | CASE
    marks = letters[(letters == QUOTE) | (folded == OPENING) | (folded == CLOSING)]
    outside = np.cumsum(marks == QUOTE, dtype=np.uint8) % 2 == 0
    opened, closed = (((marks | CASE) == one) & outside for one in (OPENING, CLOSING))
    return int(np.cumsum(opened.astype(np.int32) - closed).max(initial=0))


def _num_brackets(letters: Letters) -> int:
    return int(np.count_nonzero((letters | CASE) == OPENING))


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
