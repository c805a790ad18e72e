"""The first message of a connection: who comes, and in a cluster with a key the proof of it.

Without a key it is the sink's name. What a key makes of it is not known here, but in
node/signed_introductions.py.
"""

from typing import Protocol

from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.ledger.known_sources import Address
from kv_transfer.side_channel.frames import BadFrames

LONGEST_NAME = 255
LONGEST_SAID = 1024  # of a name, and whatever proves it
SIGNED = b"\0signed\0"
"""What an introduction begins with that is more than a name; no name of ours does."""


class NotIntroduced(BadFrames):
    """Who comes has not said who it is as it should; `reason` is one word."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Introductions(Protocol):
    """How sinks say their names, and how sources read them."""

    def said(self, name: Peer, to: Address) -> bytes:
        """By a sink of this name, to the source at this address."""

    def read(self, said: bytes, here: Address) -> Peer:
        """By the source that is here: the name; raises BadFrames, or NotIntroduced."""


class PlainNames:
    """Of a cluster without a key: everybody is who they say they are."""

    def said(self, name: Peer, to: Address) -> bytes:
        """See Introductions."""
        return name

    def read(self, said: bytes, here: Address) -> Peer:
        """Who has a key is told that there is none here: the cluster was meant to have one."""
        if said.startswith(SIGNED):
            raise NotIntroduced("it signs, and there is no --cluster-key here", "signed")
        return check_name(said)


def check_name(name: bytes) -> Peer:
    """Raises BadFrames for what is too short or too long for one."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise BadFrames(f"a name of {len(name)} bytes")
    return name
