"""Pairs of texts, and the similarity of their embeddings. Pure."""

from collections.abc import Sequence

import numpy as np

from api.errors import BadRequest
from api.pooling.batches import Vector
from api.pooling.bodies import Texts
from api.pooling.request_parser import MOST_INPUTS

Pair = tuple[str, str]


def pairs_of(first: Texts, second: Texts, param: str = "text_2") -> Sequence[Pair]:
    """Pair one text with each of the others, or each with its counterpart; raises BadRequest.

    `param` is the field of the second texts.
    """
    ones = [first] if isinstance(first, str) else first
    twos = [second] if isinstance(second, str) else second
    if not twos:
        raise BadRequest(f"{param} must not be empty", param)
    if len(twos) > MOST_INPUTS:
        raise BadRequest(f"more than {MOST_INPUTS} pairs in one request", param)
    if len(ones) == 1:
        ones = ones * len(twos)
    if len(ones) != len(twos):
        said = f"{len(ones)} and {len(twos)} texts cannot be paired: 1:1, 1:N or N:N"
        raise BadRequest(said, param)
    return list(zip(ones, twos, strict=True))


def cosine(one: Vector, two: Vector) -> float:
    """The cosine of two vectors, from -1 to 1; 0 if one of them is zero."""
    first, second = (vector.rows[0].astype(np.float64) for vector in (one, two))
    length = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / length if length else 0.0
