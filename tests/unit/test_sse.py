"""Events are the same wherever the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire import WireError
from proxy.nodes.sse import SseSplitter

payloads = st.text(st.characters(codec="ascii", exclude_characters="\r\n"), min_size=1)
ends = st.sampled_from([b"\n", b"\r\n"])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(said=st.lists(payloads), end=ends, places=st.lists(st.integers(0, 10_000)))
def test_wherever_it_is_cut(said: list[str], end: bytes, places: list[int]) -> None:
    frames = [b"data: " + one.encode() for one in said]
    stream = b"".join(b": alive" + end + end + frame + end + end for frame in frames)
    splitter = SseSplitter()
    assert [frame for part in cut(stream, places) for frame in splitter.feed(part)] == frames


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b": alive\n\n", []),
        (b"event: x\ndata: 1\nid: 2\n\n", [b"data: 1"]),
        (b"data: 1\ndata: 2\n\n", [b"data: 1\ndata: 2"]),
        (b"\n\n\n\ndata:1\n\n", [b"data:1"]),
        (b"data: 1", []),
    ],
)
def test_what_counts(stream: bytes, found: list[bytes]) -> None:
    assert list(SseSplitter().feed(stream)) == found


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_an_end_is_found_wherever_it_is_cut(end: bytes) -> None:
    for at in range(len(end) + 1):
        splitter = SseSplitter()
        said = [*splitter.feed(b"data: 1" + end[:at]), *splitter.feed(end[at:] + b"data:")]
        assert said == [b"data: 1"]
        assert splitter.num_held == len(b"data:")


def test_an_event_without_end_is_refused() -> None:
    splitter = SseSplitter(longest=10)
    splitter.feed(b"data: x")
    with pytest.raises(WireError):
        splitter.feed(b"yyyy")
