"""Which blocks a prefix cache has, as its events add up: what new subscribers are told."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from engine.cache_events import BlocksStored, CacheEvent, Medium


class _Block(NamedTuple):
    """One block of an event; its tokens are only cut out when they are wanted."""

    event: BlocksStored
    place: int

    @property
    def parent(self) -> bytes | None:
        return self.event.keys[self.place - 1] if self.place else self.event.parent


_Blocks: TypeAlias = Mapping[tuple[bytes, Medium], _Block]


@dataclass(slots=True)
class LiveBlocks:
    """`block_size` is in tokens. A block counts once for each medium that has it."""

    block_size: int
    _blocks: dict[tuple[bytes, Medium], _Block] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._blocks)

    def apply(self, event: CacheEvent) -> None:
        """Follow one event."""
        for index, key in enumerate(event.keys):
            place = key, event.medium
            if isinstance(event, BlocksStored):
                self._blocks[place] = _Block(event, index)
            else:
                self._blocks.pop(place, None)

    def snapshot(self) -> Iterator[BlocksStored]:
        """Each block that is there now, in an event of its own, behind the one before it in
        its prompt. What happens later does not show.
        """
        blocks = self._blocks.copy()
        return (self._alone(one) for one in _parents_first(blocks))

    def _alone(self, block: _Block) -> BlocksStored:
        event, index = block
        begin, end = index * self.block_size, (index + 1) * self.block_size
        return BlocksStored(
            keys=(event.keys[index],),
            parent=block.parent,
            tokens=event.tokens[begin:end],
            adapter=event.adapter,
            salt=event.salt,
            medium=event.medium,
        )


def _parents_first(blocks: _Blocks) -> Iterator[_Block]:
    """A block that was evicted and stored again comes later than what was built upon it."""
    done = set[bytes]()
    key: bytes | None
    for key, _ in blocks:
        chain = list[list[_Block]]()
        while key is not None and key not in done and (copies := _copies(blocks, key)):
            done.add(key)
            chain.append(copies)
            key = copies[0].parent
        for copies in reversed(chain):
            yield from copies


def _copies(blocks: _Blocks, key: bytes) -> list[_Block]:
    return [blocks[key, medium] for medium in Medium if (key, medium) in blocks]
