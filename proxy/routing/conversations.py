"""Which decode node last saw which tokens, so that a prefill node can fetch their KV there.

A conversation is known only by its prefix hashes (proxy/routing/prefix_hashes.py): a turn that
begins with the tokens of an earlier one has the same hashes, whoever sends it. A location may
be outdated; then the prefill node gets nothing there, and computes.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from discovery.address import parse_address
from discovery.errors import MalformedAddress
from discovery.node import Node
from discovery.registration import Registration
from kv_transfer.ticket import CacheHint
from proxy.routing.prefix_hashes import STRIDE, PrefixHashes

MOST_KNOWN = 65_536


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """A node that has the KV in its cache; after a restart it has another id."""

    http_address: str
    node_id: str


@dataclass(slots=True)
class Conversations:
    """An LRU map of prefix hashes, `most` of them, to the decode nodes that have their KV."""

    most: int = MOST_KNOWN
    _locations: OrderedDict[bytes, CacheLocation] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._locations)

    def remember(self, names: PrefixHashes, asked_tokens: int, node: Node) -> None:
        """Record that the node has the KV of these tokens; the first `asked_tokens` are the
        request's.

        For the request itself the last hash suffices: it is found if the next prompt repeats
        the request, even if it writes the answer differently.
        """
        place = CacheLocation(node.address, node.node_id)
        for name in names[max(0, asked_tokens // STRIDE - 1) :]:
            self._locations[name] = place
            self._locations.move_to_end(name)
        while len(self._locations) > self.most:
            self._locations.popitem(last=False)

    def find(self, names: PrefixHashes) -> CacheLocation | None:
        """The location of the longest known prefix of these hashes."""
        for name in reversed(names):
            if place := self._locations.get(name):
                self._locations.move_to_end(name)
                return place
        return None


def cache_at(node: Node, reader: Node) -> CacheHint | None:
    """How `reader` asks this node's prefix cache; None: the two caches are incompatible.

    Block hashes depend on the block size, so nodes with different sizes share none.
    """
    theirs, ours = node.registration, reader.registration
    fingerprint = ours.fingerprint
    if node is reader or fingerprint is None or theirs.fingerprint != fingerprint:
        return None
    if _block_size(theirs) != _block_size(ours):
        return None
    try:
        host, port = parse_address(theirs.zmq_address)
    except MalformedAddress:
        return None
    return CacheHint(node.node_id, host, port, fingerprint)


def _block_size(registration: Registration) -> object:
    return (registration.kv_layout or {}).get("block_size")
