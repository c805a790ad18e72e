"""Signed introductions of KV sinks to sources, in a cluster with a key.

An introduction has the sink's name, the source's address, the time and an HMAC, signed as
registrations are (discovery/signature.py). A source accepts each name with a later time only,
so a recorded introduction can neither be replayed nor be used at another source.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from discovery.errors import BadSignature, MalformedRegistration
from discovery.registration import pack, unpack
from discovery.signature import OTHER_KEY, UNSIGNED, SigningTimes, Verifier, sign
from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.ledger.known_sources import Address
from kv_transfer.side_channel.frames import BadFrames
from kv_transfer.side_channel.introduction import SIGNED, NotIntroduced, check_name

NAME, TO = "sink", "source"
ELSEWHERE = "elsewhere"


@dataclass(slots=True)
class SignedIntroductions:
    """Introductions of one engine, as a sink and as a source; used by one thread."""

    key: bytes = field(repr=False)
    wall_clock: Callable[[], float] = time.time
    _verifier: Verifier = field(init=False, repr=False)
    _stamps: SigningTimes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Start without any name seen."""
        self._verifier, self._stamps = Verifier(self.key, NAME), SigningTimes(self.wall_clock)

    def said(self, name: Peer, to: Address) -> bytes:
        """See Introductions."""
        message = {NAME: name, TO: _place(to)}
        return SIGNED + pack(sign(message, self.key, wall_time=self._stamps.another()))

    def read(self, said: bytes, here: Address) -> Peer:
        """See Introductions; the sink is told the text of a BadSignature."""
        if not said.startswith(SIGNED):
            why = "there is a key here, and this is not signed"
            raise NotIntroduced(f"{why}: {OTHER_KEY}", UNSIGNED)
        try:
            message = unpack(said.removeprefix(SIGNED))
            self._verifier.check(message, wall_time=self.wall_clock())
        except BadSignature as error:
            raise NotIntroduced(str(error), error.reason) from error
        except MalformedRegistration as error:
            raise BadFrames(f"an introduction that cannot be read: {error}") from error
        if message.get(TO) != _place(here):
            raise NotIntroduced(f"said to {message.get(TO)}, not {_place(here)}", ELSEWHERE)
        name = message.get(NAME)
        return check_name(name if isinstance(name, bytes) else b"")


def _place(address: Address) -> str:
    host, port = address
    return f"{host}:{port}"
