"""POST /pooling from the proxy to a node: token ids in, float32 out. Pure.

It is vLLM's endpoint, so either side may be vLLM; segments are only sent to pdserve's nodes.
"""

from base64 import b64decode
from collections.abc import Sequence

import msgspec
import numpy as np

from api.generator import PooledEvent
from api.wire import UNREADABLE, WireError
from engine.request import PoolingRequest

PATH = "/pooling"


class _Datum(msgspec.Struct):
    index: int
    data: str


class _Answer(msgspec.Struct):
    data: list[_Datum]


def encode_pooling(requests: Sequence[PoolingRequest], model: str | None) -> bytes:
    """Encode requests that differ only in their prompts as one body."""
    first = requests[0]
    body: dict[str, object] = {
        "model": model,
        "request_id": first.request_id,
        "input": [one.prompt for one in requests],
        "task": first.task,
        "encoding_format": "base64",
        "use_activation": first.activation,
        "priority": first.priority,
    }
    if first.dimensions is not None:
        body["dimensions"] = first.dimensions
    if first.cache_salt:
        body["cache_salt"] = first.cache_salt
    if any(one.token_types for one in requests):
        segments = [one.token_types or (0,) * len(one.prompt) for one in requests]
        body["pdserve"] = {"token_types": segments}
    return msgspec.json.encode(body)


def decode_pooled(data: bytes, requests: Sequence[PoolingRequest]) -> list[PooledEvent]:
    """One event for each request, in their order; raises WireError."""
    try:
        said = sorted(msgspec.json.decode(data, type=_Answer).data, key=lambda one: one.index)
        values = [b64decode(one.data, validate=True) for one in said]
    except (*UNREADABLE, ValueError) as error:  # not base64, or not even ASCII
        raise WireError(str(error)) from error
    if [one.index for one in said] != list(range(len(requests))):
        raise WireError(f"{len(said)} vectors for {len(requests)} prompts")
    return [_event(one, some) for one, some in zip(requests, values, strict=True)]


def _event(request: PoolingRequest, values: bytes) -> PooledEvent:
    """The event of one item: little-endian floats, for token tasks all vectors in a row."""
    rows = len(request.prompt) if request.task.startswith("token_") else 1
    width, rest = divmod(len(values), 4 * rows)
    if rest or not width:
        raise WireError(f"{len(values)} bytes are no {rows} vectors of float32")
    return PooledEvent(np.frombuffer(values, "<f4").astype("=f4").tobytes(), width)
