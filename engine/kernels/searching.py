"""How far top-k, top-p and min-p have to search rows of logits for the tokens they keep."""

from collections.abc import Iterable
from enum import IntEnum

MOST_LIKELIEST = 256  # most likely tokens of a row that are found without a search


class Search(IntEnum):
    """NONE: nothing is truncated. LIKELIEST: the kept tokens are among the most likely, unless
    too many tie. ANYWHERE: any number of tokens may be kept.
    """

    NONE = 0
    LIKELIEST = 1
    ANYWHERE = 2


def search_for(asked: Iterable[tuple[float, int, float, float]]) -> Search:
    """The furthest search of rows with these temperatures, top-k, top-p and min-p."""
    return max(map(_search, asked), default=Search.NONE)


def _search(asked: tuple[float, int, float, float]) -> Search:
    temperature, top_k, top_p, min_p = asked
    if temperature <= 0 or not (top_k > 0 or top_p < 1 or min_p > 0):
        return Search.NONE
    return Search.LIKELIEST if 0 < top_k <= MOST_LIKELIEST else Search.ANYWHERE
