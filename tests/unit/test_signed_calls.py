"""A call of a node's door is signed for what it asks, with the cluster's key, for a while."""

from collections.abc import Callable

import pytest

from discovery.errors import BadSignature
from discovery.signature import WINDOW_S, sign
from discovery.signed_calls import NO_HEADERS, SIGNATURE, CallKey, Signing

KEY, NOW, PATH = CallKey.of("the cluster's"), 1e9, "/path?and=query"


@pytest.mark.parametrize(
    ("key", "method", "target", "late_s", "reason"),
    [
        ("the cluster's", "POST", PATH, WINDOW_S, None),
        ("the cluster's", "POST", PATH, -WINDOW_S, None),
        ("the cluster's", "POST", PATH, WINDOW_S + 1, "stale"),
        ("the cluster's", "POST", PATH, -WINDOW_S - 1, "stale"),
        ("the cluster's", "POST", "/path", 0, "forged"),
        ("the cluster's", "GET", PATH, 0, "forged"),
        ("another's", "POST", PATH, 0, "forged"),
    ],
)
def test_a_call_is_good_for_what_it_asks_its_key_and_a_while(
    key: str, method: str, target: str, late_s: float, reason: str | None
) -> None:
    said = KEY.sign("POST", PATH, wall_time=NOW)
    assert refusal(CallKey.of(key), said, method, target, NOW + late_s) == reason


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (None, "unsigned"),
        *(
            (said, "forged")
            for said in ("", " ", "x y", "1 zz", "nan 00", "1e9", "inf 00", "ü ü")
        ),
    ],
)
def test_what_is_no_signature_is_refused(said: str | None, reason: str) -> None:
    assert refusal(KEY, said, "POST", PATH, NOW) == reason


@pytest.mark.parametrize("signed_at", ["nan", "inf", "-inf", "1e999"])
def test_no_time_is_within_no_window(signed_at: str) -> None:
    """Even where who said it has the key."""
    said = KEY.sign("POST", PATH, wall_time=float(signed_at))
    assert refusal(KEY, said, "POST", PATH, NOW) == "stale"


def test_another_message_of_the_cluster_is_no_call() -> None:
    order = sign({"call": PATH}, b"the cluster's", wall_time=NOW)
    assert refusal(KEY, f"{NOW!r} {order['mac'].hex()}", "POST", PATH, NOW) == "forged"


def test_calls_carry_their_signature_and_without_a_key_nothing() -> None:
    headers = Signing(KEY, lambda: NOW).headers("POST", PATH)
    assert refusal(KEY, headers[SIGNATURE], "POST", PATH, NOW) is None
    assert Signing().headers("POST", PATH) is NO_HEADERS
    assert Signing.of(None) == Signing.of(b"") == Signing()


@pytest.mark.parametrize("told", [repr, str, "{!r:}".format])
def test_no_key_is_ever_shown(told: Callable[[object], str]) -> None:
    assert "cluster's" not in told(KEY) + told(Signing(KEY))


def refusal(key: CallKey, said: str | None, method: str, target: str, now: float) -> str | None:
    """The reason, and None for what is let in."""
    try:
        key.check(said, method, target, wall_time=now)
    except BadSignature as error:
        return error.reason
    return None
