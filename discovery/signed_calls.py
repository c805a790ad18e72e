"""Signs and verifies HTTP calls of nodes with the cluster key.

A header has the time and the HMAC-SHA256 of method, path and time. The body is not signed, so
that the cost does not grow with its length: a captured header can be replayed with another body
for as long as its time is valid (docs/decisions/0071-a-key-closes-doors-and-kv-ports.md).
"""

import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from discovery.errors import BadSignature
from discovery.signature import FORGED, HASH, OTHER_KEY, UNSIGNED, check_time

SIGNATURE = "X-Pdserve-Signature"
"""The header of a signed call: seconds of its sender's clock, a space, the HMAC in hex."""
REFUSED = "cluster_key"
"""The error code with which a node answers calls that are not signed with its key."""


@dataclass(frozen=True, slots=True)
class CallKey:
    """A cluster's key, prepared for signing; the key itself is not kept."""

    _schedule: hmac.HMAC = field(repr=False)

    @classmethod
    def of(cls, key: str | bytes) -> Self:
        """Prepare a key as it is configured."""
        secret = key.encode() if isinstance(key, str) else key
        return cls(hmac.new(secret, digestmod=HASH))

    def sign(self, method: str, target: str, *, wall_time: float) -> str:
        """The header's value; `target` is the path with the query, if there is one."""
        said = repr(wall_time)
        return f"{said} {self._mac(method, target, said).hex()}"

    def check(self, said: str | None, method: str, target: str, *, wall_time: float) -> None:
        """Raises BadSignature if the header is missing, unreadable, wrong or stale."""
        if said is None:
            why = f"the cluster has a key and this call no {SIGNATURE}"
            raise BadSignature(f"{why}: {OTHER_KEY}", UNSIGNED)
        at, _, mac = said.partition(" ")
        try:
            signed_at, given = float(at), bytes.fromhex(mac)
            right = self._mac(method, target, at)
        except ValueError as error:
            raise BadSignature(f"{SIGNATURE} cannot be read", FORGED) from error
        if not hmac.compare_digest(given, right):
            raise BadSignature(f"{SIGNATURE} is wrong: {OTHER_KEY}", FORGED)
        check_time(signed_at, wall_time=wall_time)

    def _mac(self, method: str, target: str, at: str) -> bytes:
        """The HMAC; nothing else signed with the key begins like this: no other proof fits."""
        mac = self._schedule.copy()
        mac.update(f"call {method} {target} {at}".encode())
        return mac.digest()


NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Signing:
    """Signs calls of nodes. Without a key there is no header, and no cost."""

    key: CallKey | None = None
    wall_clock: Callable[[], float] = time.time

    @classmethod
    def of(cls, key: bytes | None) -> Self:
        """Sign with the cluster's key, if it has one."""
        return cls(CallKey.of(key) if key else None)

    def headers(self, method: str, target: str) -> Mapping[str, str]:
        """The headers of one call, which must be made within seconds."""
        if self.key is None:
            return NO_HEADERS
        return {SIGNATURE: self.key.sign(method, target, wall_time=self.wall_clock())}
