"""Proof that a registration or an order comes from a process that knows the cluster's key.

HMAC-SHA256 over the msgpack of the message without `mac`, keys sorted. `time` is in the
message, so an old one cannot be sent again: it must be close to our clock, and grow with
every message of a node. A call that is for the cluster's own proxies only is signed likewise.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from discovery.errors import MalformedRegistration

WINDOW_S = 30.0
FORGET_S = 1.0
HASH = "sha256"
SIGNATURE = "X-Pdserve-Signature"
"""The header that a signed call has."""


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
        """Raises MalformedRegistration for what is not signed, or not new."""
        mac, time = message.get("mac"), message.get("time")
        if not isinstance(mac, bytes) or not isinstance(time, float):
            raise MalformedRegistration(
                "the cluster has a key and this message no signature", "unsigned"
            )
        unsigned = {name: value for name, value in message.items() if name != "mac"}
        if not hmac.compare_digest(mac, _mac(unsigned, self.key)):
            raise MalformedRegistration("the signature is wrong", "forged")
        if not abs(time - wall_time) <= WINDOW_S:  # nor if it is not a number
            raise MalformedRegistration(
                f"signed {wall_time - time:.0f} s ago, by our clock", "stale"
            )
        sender = repr(message.get(self.sender))
        if time <= self._latest.get(sender, 0.0):
            raise MalformedRegistration("seen before", "replayed")
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


def sign_call(path: str, key: bytes, *, wall_time: float) -> str:
    """Shows a node's door that who calls knows the cluster's key: `check_call` reads it."""
    return f"{wall_time!r} {_mac({'call': path, 'time': wall_time}, key).hex()}"


def check_call(said: str | None, path: str, key: bytes, *, wall_time: float) -> bool:
    """Whether a call of this path was signed with the key, and within the last seconds."""
    time, _, mac = (said or "").partition(" ")
    try:
        called_at, given = float(time), bytes.fromhex(mac)
    except ValueError:
        return False
    right = _mac({"call": path, "time": called_at}, key)
    return hmac.compare_digest(given, right) and abs(called_at - wall_time) <= WINDOW_S


def _mac(message: Mapping[str, Any], key: bytes) -> bytes:
    try:
        plain = msgpack.packb({name: message[name] for name in sorted(message)})
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedRegistration(repr(error)) from error
    return hmac.digest(key, plain, HASH)
