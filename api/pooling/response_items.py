"""Writes vectors into response bodies: as numbers, or base64 of little-endian float32."""

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Sequence

import msgspec

from api.pooling.batches import Vector
from api.pooling.bodies import Encoding, PoolingItem


def encode_vector(vector: Vector, encoding: Encoding | None) -> list[float] | str:
    """One vector, as numbers or base64."""
    if encoding != "base64":
        return vector.values
    return b64encode(vector.rows.astype("<f4").tobytes()).decode()


def pooling_item(
    index: int, vector: Vector, encoding: Encoding | None, *, whole: bool
) -> PoolingItem:
    """One input's item; `whole`: a vector for each token, in base64 one after the other."""
    if whole and encoding != "base64":
        return PoolingItem(index, "pooling", data=vector.rows.tolist())
    return PoolingItem(index, "pooling", data=encode_vector(vector, encoding))


def label_of(vector: Vector, labels: Sequence[str]) -> str | None:
    """The label of the likeliest class; None where it has no known name."""
    best = int(vector.rows.argmax())
    return labels[best] if best < len(labels) else None


async def write_items(data: Iterable[PoolingItem]) -> list[msgspec.Raw]:
    """The items as JSON, one at a time: thousands at once would delay all streams."""
    said = list[msgspec.Raw]()
    for one in data:
        said.append(msgspec.Raw(msgspec.json.encode(one)))
        await asyncio.sleep(0)
    return said
