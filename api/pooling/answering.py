"""Vectors as the bodies of answers say them: numbers, or base64 of little-endian float32."""

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Sequence

import msgspec

from api.pooling.bodies import Datum, Encoding
from api.pooling.running import Vector


def as_data(vector: Vector, encoding: Encoding | None) -> list[float] | str:
    """One vector."""
    if encoding != "base64":
        return vector.values
    return b64encode(vector.rows.astype("<f4").tobytes()).decode()


def datum(index: int, vector: Vector, encoding: Encoding | None, *, whole: bool) -> Datum:
    """`whole`: a vector for each token, as base64 behind one another."""
    if whole and encoding != "base64":
        return Datum(index, "pooling", data=vector.rows.tolist())
    return Datum(index, "pooling", data=as_data(vector, encoding))


def label_of(vector: Vector, labels: Sequence[str]) -> str | None:
    """The likeliest class; of one that is all there is; None where nobody knows its name."""
    best = int(vector.rows.argmax())
    return labels[best] if best < len(labels) else None


async def written(data: Iterable[Datum]) -> list[msgspec.Raw]:
    """As JSON, one by one: thousands of vectors at once would hold up all streams."""
    said = list[msgspec.Raw]()
    for one in data:
        said.append(msgspec.Raw(msgspec.json.encode(one)))
        await asyncio.sleep(0)
    return said
