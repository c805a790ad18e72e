"""Where the state of one sequence comes from, and where copies of it go (see snapshots.py)."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field


@dataclass(slots=True)
class StateTrail:
    """The snapshots that one sequence begins from and makes. All blocks are referenced.

    `source` are the blocks of the one that its next chunk begins from; `ends` the positions of
    those to be made, ascending: no chunk goes beyond the first. `target` are the blocks for
    that one, once a chunk that reaches it was chosen.
    """

    source: list[int]
    ends: list[int]
    target: list[int] = field(default_factory=list)

    @property
    def blocks(self) -> Seq[int]:
        """All blocks that it references."""
        return *self.source, *self.target

    def target_at(self, end: int) -> Seq[int]:
        """Where the state behind a chunk that ends there is copied to; empty: nowhere."""
        return self.target if self.ends and self.ends[0] == end else ()
