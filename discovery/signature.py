"""Signs and verifies registrations and orders with the cluster key.

HMAC-SHA256 over the msgpack of the message without `mac`, keys sorted. The message contains
`time`, which must be close to our clock and grow with every message of a node, so an old
message cannot be replayed. Calls of a node's door are signed differently (signed_calls.py).
"""

import hmac
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from discovery.errors import BadSignature, MalformedRegistration

WINDOW_S = 30.0
FORGET_S = 1.0
TICK_S = 1e-6  # no two messages of a sender have the same time
HASH = "sha256"
UNSIGNED, FORGED, STALE, REPLAYED = "unsigned", "forged", "stale", "replayed"
"""What may be wrong with a signature, for metrics; below, what to check."""
OTHER_KEY = "is --cluster-key the same there?"
OTHER_TIME = "are both clocks right?"


def sign(message: Mapping[str, Any], key: bytes, *, wall_time: float) -> dict[str, Any]:
    """The message with `time` and `mac` added."""
    timed = {**message, "time": wall_time}
    return {**timed, "mac": _mac(timed, key)}


@dataclass(slots=True)
class SigningTimes:
    """The times that one sender signs with: each is later than the one before.

    Even if its clock is set back by up to WINDOW_S. If it is set back further, the times follow
    the clock: receivers with a right clock would reject others, and have forgotten earlier
    ones.
    """

    clock: Callable[[], float] = time.time
    _latest: float = -math.inf

    def another(self) -> float:
        """The time for one message."""
        now = self.clock()
        ahead_s = self._latest - now
        self._latest = self._latest + TICK_S if 0 <= ahead_s <= WINDOW_S else now
        return self._latest


@dataclass(slots=True)
class Verifier:
    """Checks all messages against one key; remembers each sender's latest time.

    `sender` is the field that identifies whose clock `time` is from.
    """

    key: bytes
    sender: str = "node_id"
    _latest: dict[str, float] = field(default_factory=dict)
    _forgotten_at: float = 0.0  # by our clock

    def check(self, message: Mapping[str, Any], *, wall_time: float) -> None:
        """Raises BadSignature if the message is unsigned, forged, stale, or was sent before."""
        mac, time = message.get("mac"), message.get("time")
        if not isinstance(mac, bytes) or not isinstance(time, float):
            why = f"the cluster has a key and this message no signature: {OTHER_KEY}"
            raise BadSignature(why, UNSIGNED)
        unsigned = {name: value for name, value in message.items() if name != "mac"}
        if not hmac.compare_digest(mac, _mac(unsigned, self.key)):
            raise BadSignature(f"the signature is wrong: {OTHER_KEY}", FORGED)
        check_time(time, wall_time=wall_time)
        sender = repr(message.get(self.sender))
        self._forget(wall_time)
        if time <= self._latest.get(sender, 0.0):
            raise BadSignature("seen before", REPLAYED)
        self._latest[sender] = time

    def _forget(self, wall_time: float) -> None:
        """Forget times outside the window, since those messages cannot be replayed now.

        This includes times in the future, after a clock was ahead: its sender must be accepted
        again before that time has come.
        """
        if abs(wall_time - self._forgotten_at) < FORGET_S:
            return
        self._forgotten_at = wall_time
        known = self._latest.items()
        late = [node for node, time in known if abs(wall_time - time) > WINDOW_S]
        for node in late:
            del self._latest[node]


def check_time(signed_at: float, *, wall_time: float) -> None:
    """Raises BadSignature if it was signed too long ago, or in the future."""
    if not abs(signed_at - wall_time) <= WINDOW_S:  # also rejects nan
        ago = f"signed {wall_time - signed_at:.0f} s ago, by our clock"
        raise BadSignature(f"{ago}: {OTHER_TIME}", STALE)


def _mac(message: Mapping[str, Any], key: bytes) -> bytes:
    try:
        plain = msgpack.packb({name: message[name] for name in sorted(message)})
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedRegistration(repr(error)) from error
    return hmac.digest(key, plain, HASH)
