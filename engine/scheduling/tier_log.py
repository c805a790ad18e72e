"""A log of what enters and leaves the tiers below KV memory."""

from array import array
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from engine.cache_events import BlocksRemoved, BlocksStored, CacheEvent, Medium


class TierContents(Protocol):
    """What the tiers hold."""

    def media_of(self, key: bytes) -> Iterable[Medium]:
        """The tiers that a block can be read from."""


@dataclass(frozen=True, slots=True)
class _Block:
    """What a key is the hash of."""

    parent: bytes | None
    tokens: "array[int]"
    adapter: str | None
    salt: str


@dataclass(slots=True)
class _MediumLog:
    """What was told of one tier, and what has changed since: no key is in both lists."""

    told: set[bytes] = field(default_factory=set)
    stored: dict[bytes, None] = field(default_factory=dict)
    removed: dict[bytes, None] = field(default_factory=dict)

    def add(self, key: bytes) -> None:
        if key in self.removed:
            del self.removed[key]
        elif key not in self.told:
            self.stored[key] = None
        self.told.add(key)

    def remove(self, key: bytes) -> None:
        if key not in self.told:
            return
        self.told.remove(key)
        if key in self.stored:
            del self.stored[key]
        else:
            self.removed[key] = None


@dataclass(slots=True)
class TierLog:
    """Collects the tiers' changes until they are taken. What came and went is not told.

    Tiers know blocks by their keys alone. So what a block is made of is remembered from when KV
    memory has it (`in_memory`) for as long as it is anywhere. A block that a tier has but whose
    tokens are not known, such as one that an earlier run left on disk, is told once they are.
    """

    contents: TierContents
    in_memory: Container[bytes]
    _blocks: dict[bytes, _Block] = field(default_factory=dict)
    _media: dict[Medium, _MediumLog] = field(
        default_factory=lambda: defaultdict[Medium, _MediumLog](_MediumLog)
    )

    def describe(self, event: BlocksStored) -> None:
        """These blocks are in KV memory now; some may be in tiers already."""
        size, parent = len(event.tokens) // len(event.keys), event.parent
        for index, key in enumerate(event.keys):
            tokens = array("i", event.tokens[index * size : (index + 1) * size])
            self._blocks[key] = _Block(parent, tokens, event.adapter, event.salt)
            for medium in self.contents.media_of(key):
                self._media[medium].add(key)
            parent = key

    def entered(self, key: bytes, medium: Medium) -> None:
        """See TierListener, here and below."""
        if key in self._blocks:
            self._media[medium].add(key)

    def left(self, key: bytes, medium: Medium) -> None:
        """The block is not in this tier."""
        self._media[medium].remove(key)
        self.forget(key)

    def forget(self, key: bytes) -> None:
        """Forget what a block was made of, if it is nowhere any more."""
        if key not in self.in_memory and not any(
            key in one.told for one in self._media.values()
        ):
            self._blocks.pop(key, None)

    def take(self) -> Iterator[CacheEvent]:
        """The changes since the last call; of each tier first what was removed."""
        for medium, log in self._media.items():
            if log.removed:
                yield BlocksRemoved(tuple(log.removed), medium)
            for chain in self._chains(log.stored):
                yield self._joined(chain, medium)
            log.stored, log.removed = {}, {}

    def _chains(self, keys: Iterable[bytes]) -> Iterator[Seq[bytes]]:
        """The keys, in runs of consecutive blocks of one prompt; parents come first."""
        wanted, after = dict.fromkeys(keys), defaultdict[bytes | None, list[bytes]](list)
        for key in wanted:
            after[self._blocks[key].parent].append(key)
        begins = [key for key in wanted if self._blocks[key].parent not in wanted]
        while begins:
            chain = [begins.pop()]
            while more := after.get(chain[-1]):
                chain.append(more[0])
                begins += more[1:]
            yield chain

    def _joined(self, chain: Seq[bytes], medium: Medium) -> BlocksStored:
        first = self._blocks[chain[0]]
        tokens = tuple(token for key in chain for token in self._blocks[key].tokens)
        return BlocksStored(
            tuple(chain), first.parent, tokens, first.adapter, first.salt, medium
        )
