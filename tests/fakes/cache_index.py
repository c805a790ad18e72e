"""What somebody knows of a prefix cache who hears its events and nothing else."""

from dataclasses import dataclass, field

from engine.cache_events import BlocksStored, CacheEvent, Medium


@dataclass
class CacheIndex:
    """The tokens of each cached block and of all before it, by its key; `held` has them for
    each medium.
    """

    block_size: int
    held: dict[Medium, dict[bytes, tuple[int, ...]]] = field(
        default_factory=lambda: {one: {} for one in Medium}
    )
    prefixes: dict[bytes, tuple[int, ...]] = field(default_factory=dict)

    @property
    def blocks(self) -> dict[bytes, tuple[int, ...]]:
        """Those in KV memory."""
        return self.held[Medium.KV_MEMORY]

    def hear(self, event: CacheEvent) -> None:
        """No block is stored twice, nor removed if it is not there."""
        held = self.held[event.medium]
        if not isinstance(event, BlocksStored):
            for key in event.keys:
                del held[key]
            return
        assert len(event.tokens) == len(event.keys) * self.block_size
        before = () if event.parent is None else self.prefixes[event.parent]
        for index, key in enumerate(event.keys):
            assert key not in held
            first = index * self.block_size
            held[key] = event.tokens[first : first + self.block_size]
            before = before + held[key]
            assert self.prefixes.setdefault(key, before) == before
