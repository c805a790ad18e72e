"""Validates what arrives at the discovery port, and applies it to the registry. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from discovery.address import parse_address
from discovery.errors import MalformedAddress, MalformedRegistration
from discovery.node import Node
from discovery.registration import (
    LONGEST_FRAME,
    Layout,
    Registration,
    from_map,
    is_plain_name,
    only_load,
    pack,
    read,
    to_map,
    unpack,
)
from discovery.registry import Registry
from discovery.signature import Verifier

MOST_FRAMES = 3  # identity, perhaps an empty delimiter, payload
MOST_NODES = 4096
MOST_SENDERS = 1024
SIGNED_BYTES = 128  # what a cluster's key adds, and more
SHOWN = 40  # characters of a name, in a message
WORDLESS = "wordless"  # a reason in the metrics, and the sender if none is known


@dataclass(frozen=True, slots=True)
class JoinedNode:
    """A new node, which may replace another one."""

    node: Node
    replaced: Node | None


@dataclass(frozen=True, slots=True)
class AcceptedRegistration:
    """An accepted registration, of a node of `ours` or of vLLM."""

    ours: bool
    joined: JoinedNode | None


@dataclass(slots=True)
class Intake:
    """Accepts registrations; with a verifier only signed ones."""

    registry: Registry
    verifier: Verifier | None = None
    _complained_of: dict[str, None] = field(default_factory=dict)

    def take(
        self, frames: Sequence[bytes], *, now: float, wall_time: float
    ) -> AcceptedRegistration:
        """Handle one message of a ROUTER; counts and raises MalformedRegistration."""
        try:
            return self._take(frames, now, wall_time)
        except MalformedRegistration as error:
            self.registry.refused[error.reason] += 1
            raise

    def _take(
        self, frames: Sequence[bytes], now: float, wall_time: float
    ) -> AcceptedRegistration:
        registration = self._read(frames, wall_time)
        before = self.registry.at(registration.http_address)
        if before is None or not only_load(before.registration, registration):
            check_names(registration)
        if before is None and len(self.registry) >= MOST_NODES:
            raise MalformedRegistration(f"{MOST_NODES} nodes are known already", "crowded")
        ours = registration.node_id is not None
        node = self.registry.apply(registration, now=now)
        if node is None:
            return AcceptedRegistration(ours, None)
        return AcceptedRegistration(ours, JoinedNode(node, before))

    def count_wordless(self, connections: int) -> bool:
        """Count connections that ended without a message; True if these are the first."""
        self.registry.refused[WORDLESS] += connections
        return self.is_first_complaint(WORDLESS)

    def is_first_complaint(self, sender: str) -> bool:
        """Whether no warning was logged yet about this sender, such as a host and a reason.

        Senders beyond MOST_SENDERS are forgotten.
        """
        if sender in self._complained_of:
            return False
        while len(self._complained_of) >= MOST_SENDERS:
            del self._complained_of[next(iter(self._complained_of))]
        self._complained_of[sender] = None
        return True

    def _read(self, frames: Sequence[bytes], wall_time: float) -> Registration:
        if not 1 < len(frames) <= MOST_FRAMES:
            raise MalformedRegistration(f"{len(frames)} frames")
        if len(frames[-1]) > LONGEST_FRAME:
            raise MalformedRegistration(f"{len(frames[-1])} bytes", "oversized")
        if self.verifier is None:
            return _unsigned(read(frames[-1]))
        message = unpack(frames[-1])
        self.verifier.check(message, wall_time=wall_time)
        return from_map(message)


def _unsigned(registration: Registration) -> Registration:
    """Raises MalformedRegistration if signed: its node would refuse our unsigned calls."""
    if registration.mac is not None:
        why = "it is signed, and this proxy has no --cluster-key"
        raise MalformedRegistration(why, "signed")
    return registration


def check_receivable(registration: Registration) -> None:
    """Raises MalformedRegistration for one that proxies would drop; a node asks before."""
    check_names(registration)
    size = len(pack(to_map(registration))) + SIGNED_BYTES
    if size > LONGEST_FRAME:
        raise MalformedRegistration(
            f"a registration of {size} bytes, of which proxies read {LONGEST_FRAME}: the names "
            "of the model and of its adapters are too many or too long"
        )


def check_names(registration: Registration) -> Registration:
    """Raises MalformedRegistration for names that must not get into log lines or URLs."""
    try:
        parse_address(registration.http_address)
    except MalformedAddress as error:
        raise MalformedRegistration(f"http_address: {error}") from error
    said = registration
    names = (said.zmq_address, said.node_id, said.model, said.fingerprint)
    served = (*said.aliases, *said.adapters)
    for name in (*names, *served, *_words(said.kv_layout or {}), *_words(said.made_of)):
        if name is not None and not is_plain_name(name):
            raise MalformedRegistration(
                f"a name that is too long or not printable: {name[:SHOWN]!r}"
            )
    return registration


def _words(layout: Layout) -> Iterator[str]:
    for key, value in layout.items():
        parts = value if isinstance(value, list) else [value]
        yield from (part for part in (key, *parts) if isinstance(part, str))
