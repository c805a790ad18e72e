"""How all blocks of a sequence are read: those of KV, and behind them those of its state. Pure.

Where both sides have the same layout, nothing tells the two kinds apart, and nothing has to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kv_transfer.blocks.mapping import BlockMapping, map_blocks
from kv_transfer.blocks.runs import BlockRuns
from kv_transfer.blocks.state_mapping import map_states
from kv_transfer.layout import KvLayout


@dataclass(frozen=True, slots=True)
class SequenceMapping:
    """Blocks of `kv`; if a `state` has another mapping, the last blocks of each side are read
    by that one: `layers` slots.

    How many blocks there are of their KV is only certain when the offer is sealed, as prompts
    of several lengths fill equally many of ours.
    """

    kv: BlockMapping
    state: BlockMapping | None = None
    their_states: int = 0  # blocks, as here
    our_states: int = 0
    layers: int = 0

    def agree(self, offered: int, reserved: int, *, sealed: bool) -> bool:
        """Whether `offered` blocks fit into `reserved` ones, or, once `sealed`, fill them."""
        kv = offered - self.their_states, reserved - self.our_states
        return self.kv.agree(*kv, complete=sealed)

    def kv_runs(self, theirs: Sequence[int], into: Sequence[int], start: int) -> BlockRuns:
        """Runs from slot `start` of KV on, of as many of their blocks as are certain."""
        if self.state is None:
            return self.kv.runs(theirs, into, start)
        ours = into[: max(0, len(into) - self.our_states)]
        known = max(len(theirs) - self.their_states, self._least(len(ours)))
        return self.kv.runs(theirs[:known], ours, start)

    @property
    def checked_states(self) -> int:
        """How many slots of a state are compared with checksums of their own."""
        return self.layers if self.state is not None and self.state.is_compared else 0

    def state_runs(self, theirs: Sequence[int], into: Sequence[int], start: int) -> BlockRuns:
        """Runs from slot `start` of a state on, of a sealed offer."""
        assert self.state is not None
        there, here = theirs[-self.their_states :], into[-self.our_states :]
        return self.state.runs(there, here, start, self.layers)

    def _least(self, reserved: int) -> int:
        """How many blocks of KV they have at least, whose tokens need `reserved` of ours."""
        slots = (reserved - 1) * self.kv.our_slots + 1
        return -(-slots // self.kv.their_slots)


@lru_cache(maxsize=64)
def map_sequences(theirs: KvLayout, ours: KvLayout) -> SequenceMapping:
    """The mapping for two layouts that `can_pull` accepts."""
    kv, state = map_blocks(theirs, ours), map_states(theirs, ours)
    if state is None:
        return SequenceMapping(kv)
    counts = theirs.state_blocks, ours.state_blocks, ours.state_layers
    return SequenceMapping(kv, state, *counts)
