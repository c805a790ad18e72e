"""What proxy and node say to each other about vectors, and whatever else a node may say."""

from array import array
from base64 import b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.bodies import convert
from api.generator import PooledEvent
from api.pooling.bodies import VectorsBody
from api.pooling.endpoints import read
from api.pooling.node_call import decode_pooled, encode_pooling
from api.wire import WireError
from engine.request import PoolingRequest, RequestId

ONE, TWO = (PoolingRequest(RequestId(str(size)), (1,) * size) for size in (2, 3))
WORDS = b64encode(array("f", [1.0, 2.0]).tobytes()).decode()
PAIR = array("f", [1.0, 2.0]).tobytes()


def answer(*data: object) -> bytes:
    return msgspec.json.encode({"data": data})


def test_a_call_is_a_body_of_our_own_endpoint() -> None:
    asked = [
        PoolingRequest(RequestId("a"), (1, 2), "classify", False, None, (0, 1), 3, "salt"),
        PoolingRequest(RequestId("b"), (5,), "classify", False, None, (), 3, "salt"),
    ]
    body = read(encode_pooling(asked, "m"), VectorsBody)
    assert (body.model, body.request_id, body.task) == ("m", "a", "classify")
    assert body.input == [[1, 2], [5]]
    assert body.segments == [[0, 1], [0]]
    assert (body.use_activation, body.priority, body.cache_salt) == (False, 3, "salt")
    cut = [PoolingRequest(RequestId("a"), (1,), dimensions=4)]
    assert read(encode_pooling(cut, None), VectorsBody).dimensions == 4


def test_vllm_is_told_nothing_that_it_does_not_know() -> None:
    said = msgspec.json.decode(encode_pooling([ONE, TWO], "m"))
    known = {"model", "request_id", "input", "task", "encoding_format"}
    assert {*said} == known | {"use_activation", "priority"}
    assert convert(said, VectorsBody).encoding_format == "base64"


def test_answers_are_put_in_order() -> None:
    other = b64encode(array("f", [3.0, 4.0]).tobytes()).decode()
    data = answer({"index": 1, "data": other}, {"index": 0, "data": WORDS})
    first, second = decode_pooled(data, [ONE, TWO])
    assert first == PooledEvent(PAIR, 2)
    assert array("f", second.values).tolist() == [3.0, 4.0]


def test_vectors_of_tokens_stand_behind_one_another() -> None:
    asked = PoolingRequest(RequestId("a"), (1, 2), "token_embed")
    assert decode_pooled(answer({"index": 0, "data": WORDS}), [asked]) == [PooledEvent(PAIR, 1)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        answer(),
        answer({"index": 1, "data": WORDS}),
        answer({"index": 0, "data": WORDS}, {"index": 0, "data": WORDS}),
        answer({"index": 0, "data": [1.0, 2.0]}),
        answer({"index": 0, "data": ""}),
        answer({"index": 0, "data": "AAA="}),
        answer({"index": 0, "data": "no base64"}),
        answer({"index": 0, "data": "not even ASCII: é"}),
    ],
)
def test_what_is_no_answer_is_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_pooled(data, [ONE])


@given(st.binary(max_size=200))
def test_nothing_breaks_the_reader(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_pooled(data, [ONE])
