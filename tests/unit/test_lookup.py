"""Where a host is: nobody waits for a name server."""

import select
import socket
import threading
from os import listdir

import pytest

from kv_transfer.lookup import Lookup, addresses

PATIENCE_S = 10.0


def over(lookup: Lookup) -> None:
    """Wait for its end as a thread does that has more to do."""
    number = lookup.fileno()
    assert number is not None
    readable, _, _ = select.select([number], [], [], PATIENCE_S)
    assert readable


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)]
)
def test_an_address_is_known_at_once(host: str, family: int) -> None:
    lookup = Lookup.of(host, 80)
    assert lookup.fileno() is None
    assert lookup.found()[0][0] == family


def test_the_end_of_a_lookup_is_announced() -> None:
    lookup = Lookup.of("localhost", 80)
    over(lookup)
    assert lookup.found() == addresses("localhost", 80)
    assert lookup.fileno() is None


@pytest.mark.parametrize("host", ["no address", "x" * 64])
def test_a_name_that_is_none_is_an_error_that_has_it(host: str) -> None:
    lookup = Lookup.of(host, 1)
    over(lookup)
    with pytest.raises(OSError, match=host):
        lookup.found()


def test_who_does_not_wait_any_more_leaves_nothing_open() -> None:
    lookup = Lookup.of("localhost", 80)
    lookup.close()
    lookup.close()
    assert lookup.fileno() is None


def test_a_name_for_which_no_thread_is_left_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is one that whoever connects knows, and tries again after; nothing stays open."""
    before = listdir("/proc/self/fd")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="localhost: can't start new thread"):
        Lookup.of("localhost", 80)
    assert {*listdir("/proc/self/fd")} <= {*before}


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
