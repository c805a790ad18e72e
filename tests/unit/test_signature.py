"""A signed message is taken once, whatever clocks do, and no other is."""

import pytest

from discovery.errors import MalformedRegistration
from discovery.registration import pack, unpack
from discovery.signature import WINDOW_S, SigningTimes, Verifier, sign

BARE = {"type": "P", "http_address": "h:1", "zmq_address": "h:2"}


def signed(time: float, key: bytes = b"key") -> dict[str, object]:
    return unpack(pack(sign(BARE | {"node_id": "n"}, key, wall_time=time)))


def test_a_signed_message_is_accepted_once() -> None:
    verifier = Verifier(b"key")
    verifier.check(signed(100.0), wall_time=101.0)
    with pytest.raises(MalformedRegistration, match="before"):
        verifier.check(signed(100.0), wall_time=101.0)
    verifier.check(signed(100.5), wall_time=101.0)


def test_a_message_is_not_accepted_again_however_late() -> None:
    """What was sent is remembered for as long as its time is good."""
    verifier = Verifier(b"key")
    verifier.check(signed(100.0), wall_time=100.0)
    for late_s in (0.0, 2.0, 15.0, WINDOW_S):
        with pytest.raises(MalformedRegistration, match="before"):
            verifier.check(signed(100.0), wall_time=100.0 + late_s)


@pytest.mark.parametrize("back_s", [0.0, 0.5, 20.0, WINDOW_S - 1])
def test_times_grow_though_the_clock_stands_or_is_set_back(back_s: float) -> None:
    now = 1000.0
    stamps = SigningTimes(lambda: now)
    first = stamps.another()
    now -= back_s
    assert first < stamps.another() < stamps.another()


@pytest.mark.parametrize("back_s", [1.0, 20.0, 40.0, 7200.0])
def test_a_cluster_whose_clock_was_ahead_and_is_set_right_goes_on(back_s: float) -> None:
    """A beat may be lost, and not hours."""
    now, lost = 1e9 + back_s, 0
    stamps, verifier = SigningTimes(lambda: now), Verifier(b"key")
    verifier.check(signed(stamps.another()), wall_time=now)
    now = 1e9
    for _ in range(5):
        now += 1
        try:
            verifier.check(signed(stamps.another()), wall_time=now)
        except MalformedRegistration:
            lost += 1
    assert lost <= 1


def test_who_alone_was_ahead_is_heard_within_the_window_once_its_clock_is_right() -> None:
    """Whatever the others had heard of it, which was at most WINDOW_S too early."""
    ours, ahead_s = 1e9, 25.0
    stamps, verifier = SigningTimes(lambda: ours + ahead_s), Verifier(b"key")
    verifier.check(signed(stamps.another()), wall_time=ours)
    ahead_s = -10.0
    ours += WINDOW_S + 10
    verifier.check(signed(stamps.another()), wall_time=ours)


@pytest.mark.parametrize(
    "message",
    [
        BARE,
        signed(100.0, b"other key"),
        signed(100.0) | {"http_address": "evil:1"},
        signed(60.0),
        signed(140.0),
        signed(100.0) | {"mac": "text"},
        sign(BARE, b"key", wall_time=float("nan")),
    ],
    ids=["unsigned", "key", "changed", "old", "future", "no bytes", "no time"],
)
def test_what_is_not_ours_or_not_new_is_refused(message: dict[str, object]) -> None:
    with pytest.raises(MalformedRegistration):
        Verifier(b"key").check(message, wall_time=100.0)
