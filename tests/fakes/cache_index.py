"""What somebody knows of a prefix cache who hears its events and nothing else."""

from dataclasses import dataclass, field

from engine.cache_events import BlocksStored, CacheEvent


@dataclass
class CacheIndex:
    """The tokens of each cached block and of all before it, by its key."""

    block_size: int
    blocks: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    prefixes: dict[bytes, tuple[int, ...]] = field(default_factory=dict)

    def hear(self, event: CacheEvent) -> None:
        """No block is stored twice, nor removed if it is not there."""
        if not isinstance(event, BlocksStored):
            for key in event.keys:
                del self.blocks[key]
            return
        assert len(event.tokens) == len(event.keys) * self.block_size
        before = () if event.parent is None else self.prefixes[event.parent]
        for index, key in enumerate(event.keys):
            assert key not in self.blocks
            first = index * self.block_size
            self.blocks[key] = event.tokens[first : first + self.block_size]
            before = self.prefixes[key] = before + self.blocks[key]
