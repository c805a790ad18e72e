"""Proof that a registration or an order comes from a process that knows the cluster's key.

HMAC-SHA256 over the msgpack of the message without `mac`, keys sorted. `time` is in the
message, so an old one cannot be sent again: it must be close to our clock, and grow with
every message of a node. Calls of a node's door are signed in their own way (signed_calls.py).
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from discovery.errors import BadSignature, MalformedRegistration

WINDOW_S = 30.0
FORGET_S = 1.0
HASH = "sha256"
UNSIGNED, FORGED, STALE, REPLAYED = "unsigned", "forged", "stale", "replayed"
"""What may be wrong with a signature, for metrics; and below, what to do about it."""
OTHER_KEY = "is --cluster-key the same there?"
OTHER_TIME = "are both clocks right?"


def sign(message: Mapping[str, Any], key: bytes, *, wall_time: float) -> dict[str, Any]:
    """The message with `time` and `mac` in it."""
    timed = {**message, "time": wall_time}
    return {**timed, "mac": _mac(timed, key)}


@dataclass(slots=True)
class Verifier:
    """Checks all messages against one key; remembers how far each sender has come.

    `sender` is the key of a message that says whose clock its `time` is of.
    """

    key: bytes
    sender: str = "node_id"
    _latest: dict[str, float] = field(default_factory=dict)
    _forgotten_at: float = 0.0  # by our clock

    def check(self, message: Mapping[str, Any], *, wall_time: float) -> None:
        """Raises BadSignature for what is not signed, or not new."""
        mac, time = message.get("mac"), message.get("time")
        if not isinstance(mac, bytes) or not isinstance(time, float):
            why = f"the cluster has a key and this message no signature: {OTHER_KEY}"
            raise BadSignature(why, UNSIGNED)
        unsigned = {name: value for name, value in message.items() if name != "mac"}
        if not hmac.compare_digest(mac, _mac(unsigned, self.key)):
            raise BadSignature(f"the signature is wrong: {OTHER_KEY}", FORGED)
        check_time(time, wall_time=wall_time)
        sender = repr(message.get(self.sender))
        if time <= self._latest.get(sender, 0.0):
            raise BadSignature("seen before", REPLAYED)
        self._forget(wall_time)
        self._latest[sender] = time

    def _forget(self, wall_time: float) -> None:
        """What is outside the window cannot be sent again anyway; looks now and then."""
        if abs(wall_time - self._forgotten_at) < FORGET_S:
            return
        self._forgotten_at = wall_time
        late = [node for node, time in self._latest.items() if wall_time - time > WINDOW_S]
        for node in late:
            del self._latest[node]


def check_time(signed_at: float, *, wall_time: float) -> None:
    """Raises BadSignature for what was signed long ago, or in times to come."""
    if not abs(signed_at - wall_time) <= WINDOW_S:  # nor if it is not a number
        ago = f"signed {wall_time - signed_at:.0f} s ago, by our clock"
        raise BadSignature(f"{ago}: {OTHER_TIME}", STALE)


def _mac(message: Mapping[str, Any], key: bytes) -> bytes:
    try:
        plain = msgpack.packb({name: message[name] for name in sorted(message)})
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedRegistration(repr(error)) from error
    return hmac.digest(key, plain, HASH)
