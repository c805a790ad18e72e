"""The first message of a connection: the sink's name, with a proof in a cluster with a key.

Without a key it is just the name. What it is with a key is not known here, but in
node/signed_introductions.py.
"""

from typing import Protocol

from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.ledger.known_sources import Address
from kv_transfer.side_channel.frames import BadFrames

LONGEST_NAME = 255
LONGEST_SAID = 1024  # a name, with whatever proves it
MALFORMED, SIGNED_HERE, CROWDED = "malformed", "signed", "crowded"
"""Why a connection may be refused, for metrics; with a key there are more reasons."""
SIGNED = b"\0signed\0"
"""The prefix of an introduction that is more than a name; none of our names has it."""


class NotIntroduced(BadFrames):
    """A peer was not introduced as required; `reason` is one word."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Introductions(Protocol):
    """How sinks introduce themselves, and how sources read that."""

    def said(self, name: Peer, to: Address) -> bytes:
        """The introduction of a sink of this name to the source at this address."""

    def read(self, said: bytes, here: Address) -> Peer:
        """The name in an introduction to the source here; raises BadFrames or NotIntroduced."""


class PlainNames:
    """Introductions in a cluster without a key: names are trusted."""

    def said(self, name: Peer, to: Address) -> bytes:
        """See Introductions."""
        return name

    def read(self, said: bytes, here: Address) -> Peer:
        """A sink that has a key is told that there is none here, since there should be one."""
        if said.startswith(SIGNED):
            raise NotIntroduced("it signs, and there is no --cluster-key here", SIGNED_HERE)
        return check_name(said)


def check_name(name: bytes) -> Peer:
    """Raises BadFrames for a name that is too short or too long."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise BadFrames(f"a name of {len(name)} bytes")
    return name
