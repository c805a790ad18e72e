"""An estimate of each node's prefix cache: which prefixes it has computed, or was sent.

A node's cache is modelled as an LRU list of prefix hashes (proxy/routing/prefix_hashes.py) with
the size of the KV memory that the node reports. If a node reports fewer cached tokens of a
prompt than expected, everything that was last used before those is dropped from the list as
well; unless its model keeps a state, because KV is of no use where no state was copied.
"""

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field

from discovery.node import Node
from proxy.routing.prefix_hashes import STRIDE, PrefixHashes

MOST_NAMES = 1 << 20  # of all nodes together
LEAST_NAMES = 256  # of one node
MOST_NODES = 4096
USUAL_BLOCK = 16  # tokens


@dataclass(slots=True)
class _Cache:
    """The estimated cache of one node; a restarted node gets a new one."""

    address: str
    names: OrderedDict[bytes, int] = field(default_factory=OrderedDict)  # name: last use
    pending: set[int] = field(default_factory=set)  # uses whose prompts are not run yet


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """One prompt sent to one node, expected to have its first `expected_hashes` cached.

    `known_use`: when the last of those was used before; 0: fewer mean nothing, as that prompt
    may still be running, or the node's model keeps a state.
    """

    prefixes: "PrefixIndex"
    node_id: str
    prefix_hashes: PrefixHashes
    expected_hashes: int
    known_use: int
    use: int
    # tokens; nodes count cached tokens in whole blocks, and compute at least one token
    block: int

    @property
    def cached_tokens(self) -> int:
        """Tokens that were expected to be cached."""
        return self.expected_hashes * STRIDE

    def computed(self, cached_tokens: int | None) -> None:
        """The prompt was run; the node reported this many cached tokens."""
        self.prefixes.computed(self)
        if cached_tokens is not None and cached_tokens + self.block < self.cached_tokens:
            self.prefixes.had_less(self)

    def take_back(self, cached_tokens: int | None = None) -> None:
        """The prompt was not run, although the node reported this many cached tokens."""
        self.prefixes.take_back(self, (cached_tokens or 0) // STRIDE)


@dataclass(slots=True)
class PrefixIndex:
    """The estimated prefix caches of all nodes; bounded by `most` hashes."""

    most: int = MOST_NAMES
    _caches: OrderedDict[str, _Cache] = field(default_factory=OrderedDict)
    _at: dict[str, str] = field(default_factory=dict)  # the node at an address
    _holders: dict[bytes, dict[str, None]] = field(default_factory=dict)
    _uses: int = 0

    def __len__(self) -> int:
        """The number of hashes, over all nodes."""
        return sum(len(cache.names) for cache in self._caches.values())

    def cached(self, node: Node, names: PrefixHashes) -> int:
        """How many tokens of a prompt with these hashes the node is expected to have cached."""
        cache = self._caches.get(node.node_id)
        if cache is None:
            return 0
        return _known_prefix(names, cache.names) * STRIDE

    def holders(self, names: PrefixHashes, most: int) -> list[str]:
        """Ids of nodes that hold a prefix of these hashes, longest first; at most `most`."""
        found = dict[str, None]()
        for name in reversed(names[: _known_prefix(names, self._holders)]):
            if len(found) >= most:
                break
            for node_id in self._holders.get(name, ()):
                found[node_id] = None
                if len(found) >= most:
                    break
        return list(found)

    def send(self, node: Node, names: PrefixHashes) -> "SentPrompt":
        """Record that a prompt with these hashes is sent to the node, which will have them."""
        cache = self._cache(node)
        thought = self.cached(node, names) // STRIDE
        last_use = cache.names[names[thought - 1]] if thought else 0
        self._uses += 1
        for name in reversed(names):  # the end of a prompt is forgotten before its beginning
            cache.names[name] = self._uses
            cache.names.move_to_end(name)
        for name in names[thought:]:
            self._holders.setdefault(name, {})[node.node_id] = None
        says_nothing = last_use in cache.pending or state_blocks(node) > 0
        known_use = 0 if says_nothing else last_use
        cache.pending.add(self._uses)
        self._shorten(cache, node)
        use, block = self._uses, block_tokens(node)
        return SentPrompt(self, node.node_id, names, thought, known_use, use, block)

    def computed(self, sent: "SentPrompt") -> None:
        """Record that the prompt was run."""
        if cache := self._caches.get(sent.node_id):
            cache.pending.discard(sent.use)

    def had_less(self, sent: "SentPrompt") -> None:
        """The expected prefix was not cached: drop everything that was used no later."""
        cache = self._caches.get(sent.node_id)
        while cache and cache.names and next(iter(cache.names.values())) <= sent.known_use:
            self._unhold(sent.node_id, cache.names.popitem(last=False)[0])

    def take_back(self, sent: "SentPrompt", there: int) -> None:
        """The prompt was never run, but its first `there` hashes are cached."""
        if cache := self._caches.get(sent.node_id):
            cache.pending.discard(sent.use)
            for name in sent.prefix_hashes[max(sent.expected_hashes, there) :]:
                if cache.names.get(name) == sent.use:
                    del cache.names[name]
                    self._unhold(sent.node_id, name)

    def _cache(self, node: Node) -> _Cache:
        address = node.address
        if (before := self._at.get(address)) not in (None, node.node_id):
            self._drop(before or "")  # it restarted: its cache is empty
        if (cache := self._caches.get(node.node_id)) is None:
            cache = self._caches[node.node_id] = _Cache(address)
            self._at[address] = node.node_id
            while len(self._caches) > MOST_NODES:
                self._drop(next(iter(self._caches)))
        self._caches.move_to_end(node.node_id)
        return cache

    def _shorten(self, cache: _Cache, node: Node) -> None:
        most = max(LEAST_NAMES, self.most // len(self._caches))
        if total := node.load.total_blocks:
            most = min(most, 1 + total * block_tokens(node) // STRIDE)
        while len(cache.names) > most:
            self._unhold(node.node_id, cache.names.popitem(last=False)[0])

    def _drop(self, node_id: str) -> None:
        if cache := self._caches.pop(node_id, None):
            for name in cache.names:
                self._unhold(node_id, name)
            del self._at[cache.address]

    def _unhold(self, node_id: str, name: bytes) -> None:
        holders = self._holders[name]
        del holders[node_id]
        if not holders:
            del self._holders[name]


def _known_prefix(names: PrefixHashes, known: Container[bytes]) -> int:
    """How many of the first hashes are known, by bisection: all before a known one are, too."""
    if not names or names[0] not in known:
        return 0
    low, high = 1, len(names)
    while low < high:
        middle = (low + high + 1) // 2
        if names[middle - 1] in known:
            low = middle
        else:
            high = middle - 1
    return low


def state_blocks(node: Node) -> int:
    """Blocks of a sequence for what the node's model keeps beside KV."""
    count = (node.registration.kv_layout or {}).get("state_blocks")
    return count if isinstance(count, int) else 0


def block_tokens(node: Node) -> int:
    """Tokens of one of the node's blocks."""
    size = (node.registration.kv_layout or {}).get("block_size")
    return size if isinstance(size, int) and size > 0 else USUAL_BLOCK
