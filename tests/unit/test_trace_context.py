"""W3C Trace Context is taken where it is sound, and is absent where it is not."""

import pytest

from api.trace_context import TraceContext, read_trace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_what_is_read_is_what_is_passed_on() -> None:
    found = read_trace([PARENT], ["congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7"])
    assert found == TraceContext(TRACE, SPAN, 1, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert found.sampled
    assert found.headers == {
        "traceparent": PARENT,
        "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    }


def test_flags_that_say_no_are_heard() -> None:
    found = read_trace([f"00-{TRACE}-{SPAN}-00"], [])
    assert found
    assert not found.sampled
    assert found.headers == {"traceparent": f"00-{TRACE}-{SPAN}-00"}


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "0",
        PARENT + "-more",
        PARENT.replace("-", "_"),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        "x" * 100_000,
    ],
)
def test_a_malformed_parent_is_none(parent: str) -> None:
    assert read_trace([parent], ["a=b"]) is None


def test_two_parents_are_none() -> None:
    assert read_trace([PARENT, PARENT], []) is None
    assert read_trace([], ["a=b"]) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    found = read_trace([f"cc-{TRACE}-{SPAN}-01-what-the-future-holds"], [])
    assert found == TraceContext(TRACE, SPAN, 1)
    assert found.headers == {"traceparent": PARENT}
    assert read_trace([f"cc-{TRACE}-{SPAN}-01.more"], []) is None


@pytest.mark.parametrize(
    "states",
    [
        ["no equals sign"],
        ["UPPER=1"],
        ["a=\x00"],
        ["a=b,c"],
        [",".join(f"k{number}=v" for number in range(33))],
        ["a=" + "x" * 600],
    ],
)
def test_a_malformed_state_is_dropped_and_the_parent_stays(states: list[str]) -> None:
    assert read_trace([PARENT], states) == TraceContext(TRACE, SPAN, 1)


def test_empty_members_and_spaces_between_are_no_fault() -> None:
    found = read_trace([PARENT], ["a=1 , ,b@vendor=2", ""])
    assert found
    assert found.state == "a=1,b@vendor=2"
