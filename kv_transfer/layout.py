"""The layout of a node's KV, and which layouts can be read. Torch-free; sent on the wire."""

from collections.abc import Sequence
from math import gcd
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

VERSION = 1
MOST_RANKS = 256  # of layouts that differ: the transfer thread lists the pieces of every rank
MOST_SLOTS = 64  # of a block, where neither block size divides the other: likewise
MOST = 1 << 48  # limit of any count: products of several stay manageable integers

Count = Annotated[int, Meta(ge=1, le=MOST)]
CountOrNone = Annotated[int, Meta(ge=0, le=MOST)]
Difference = tuple[str, object, object]
"""A field, its value on the other side, and its value here."""
RANKS = "tensor_parallel_size"
GLOBAL = ("global_layers", "global_kv_heads", "global_head_dim")
EQUAL = ("version", "dtype", "layers", "parts", "kv_heads", "head_dim", *GLOBAL)
SAME_STATE = (
    "state_layers",
    "state_key_heads",
    "state_value_heads",
    "state_key_width",
    "state_value_width",
    "state_taps",
)
NUMBER_BYTES = 4  # of a state: float32, whatever the dtype of KV


class LayerKind(NamedTuple):
    """Layers whose heads are alike: `kv_heads` of the model."""

    layers: int
    kv_heads: int
    head_dim: int

    def heads_of(self, rank: int, ranks: int) -> range:
        """The heads of one of so many ranks."""
        if ranks > self.kv_heads:
            first = rank // (ranks // self.kv_heads)
            return range(first, first + 1)
        each = self.kv_heads // ranks
        return range(rank * each, (rank + 1) * each)


class KvLayout(msgspec.Struct, frozen=True):
    """A block is [layer, part, head, token, head_dim], in one region for each rank.

    `kv_heads` are the model's, divided among the ranks (`heads_of`). `parts` is 2 for keys and
    values, or 1 for latents, which every rank has. `block_bytes` has the size of a block in
    each rank's region. Fields that are not given are 1: a block is then just a range of tokens.
    Behind these layers there may be `global_layers`, whose heads are of another number and
    width.

    The last `state_blocks` of a sequence hold its state: of each of `state_layers`, a matrix
    [key_width, value_width] for each value head, then the last inputs of a convolution,
    [taps, channels], whose channels are queries of all key heads, keys of all key heads, and
    values of all value heads. Ranks divide heads evenly. Layers are `state_layer_bytes` apart
    in a block of each rank, as many as fit. A peer that does not say this (0) can exchange
    states only with the very same layout.
    """

    dtype: str
    block_size: Count
    kv_heads: Count
    block_bytes: tuple[Count, ...]
    tensor_parallel_size: Count = 1
    layers: Count = 1
    parts: Count = 1
    head_dim: Count = 1
    version: int = VERSION
    global_layers: CountOrNone = 0
    global_kv_heads: CountOrNone = 0
    global_head_dim: CountOrNone = 0
    state_blocks: CountOrNone = 0
    state_layers: CountOrNone = 0
    state_key_heads: CountOrNone = 0
    state_value_heads: CountOrNone = 0
    state_key_width: CountOrNone = 0
    state_value_width: CountOrNone = 0
    state_taps: CountOrNone = 0
    state_layer_bytes: CountOrNone = 0

    def heads_of(self, rank: int) -> range:
        """The heads of a rank; if there are more ranks than heads, several have the
        same one.
        """
        return self.kinds[0].heads_of(rank, self.tensor_parallel_size)

    @property
    def kinds(self) -> Sequence[LayerKind]:
        """The kinds of layers, in the order in which a block has them."""
        first = LayerKind(self.layers, self.kv_heads, self.head_dim)
        other = LayerKind(self.global_layers, self.global_kv_heads, self.global_head_dim)
        return (first, other) if all(other) else (first,)

    def kind_bytes(self, rank: int) -> Sequence[int]:
        """The bytes of each kind's layers in a block of a rank."""
        return [each * self.row_bytes // self.head_dim for each in self._numbers(rank)]

    @property
    def row_bytes(self) -> int:
        """The bytes of one token for one head, in one part of one layer."""
        if not self.block_bytes:
            return 0
        return self.block_bytes[0] * self.head_dim // sum(self._numbers(0))

    def _numbers(self, rank: int) -> Sequence[int]:
        """Those of a block of a rank, by kind of layers."""
        rows, ranks = self.block_size * self.parts, self.tensor_parallel_size
        each = ((kind, len(kind.heads_of(rank, ranks))) for kind in self.kinds)
        return [rows * kind.layers * heads * kind.head_dim for kind, heads in each]

    @property
    def states_per_block(self) -> int:
        """Of how many layers a block of each rank has the states."""
        return self.block_bytes[0] // self.state_layer_bytes

    @property
    def least_layer_bytes(self) -> int:
        """The bytes of each rank's state of one layer."""
        heads, width = self.state_key_heads, self.state_key_width
        values = self.state_value_heads * self.state_value_width
        numbers = values * width + self.state_taps * (2 * heads * width + values)
        return numbers * NUMBER_BYTES // self.tensor_parallel_size


def are_alike(theirs: KvLayout, ours: KvLayout) -> bool:
    """Whether they are the same, as far as both sides say."""
    if theirs == ours or (theirs.state_layers and ours.state_layers):
        return theirs == ours
    return _undescribed(theirs) == _undescribed(ours)


def can_pull(theirs: KvLayout, ours: KvLayout) -> str | None:
    """None if a node of our layout can read theirs, or else why not."""
    if (found := difference(theirs, ours)) is None:
        return None
    name, there, here = found
    why = f"{name} is {there} there and {here} here"
    if name == RANKS and _have_many_ranks(theirs, ours):
        why += f", and only equal layouts may have more than {MOST_RANKS} ranks"
    return why


def difference(theirs: KvLayout, ours: KvLayout) -> Difference | None:
    """The first field that prevents one layout from reading the other; None if they are
    compatible.

    Block sizes fit if one divides the other, or, as a state's size decides on them, if there
    are at most MOST_SLOTS parts that divide both; ranks fit if heads divide evenly among them,
    and there are at most MOST_RANKS.
    """
    if are_alike(theirs, ours):
        return None
    names = (*EQUAL, *_equal_for_states(theirs, ours))
    for name in names:
        if getattr(theirs, name) != getattr(ours, name):
            return _told(name, theirs, ours)
    if not _divide_blocks(theirs, ours):
        return _told("block_size", theirs, ours)
    many = _have_many_ranks(theirs, ours)
    if many or not (_shares_out(theirs) and _shares_out(ours)):
        return _told(RANKS, theirs, ours)
    row = ours.row_bytes
    if not (row and _is_made_of(row, theirs) and _is_made_of(row, ours)):
        return _told("block_bytes", theirs, ours)
    wrong = ours.state_layers and (_misplaced_state(theirs) or _misplaced_state(ours))
    return _told(wrong, theirs, ours) if wrong else None


def _equal_for_states(theirs: KvLayout, ours: KvLayout) -> Sequence[str]:
    """What has to be equal so that states can be exchanged, if there are any."""
    if theirs.state_layers and ours.state_layers:
        return SAME_STATE
    if theirs.state_blocks or ours.state_blocks:
        return "block_size", RANKS, "block_bytes", "state_blocks"
    return ()


def _misplaced_state(layout: KvLayout) -> str | None:
    """The field by which states cannot be as they should; None: they are."""
    ranks, size = layout.tensor_parallel_size, layout.state_layer_bytes
    if layout.state_key_heads % ranks or layout.state_value_heads % ranks:
        return RANKS
    if not 0 < layout.least_layer_bytes <= size <= layout.block_bytes[0]:
        return "state_layer_bytes"
    blocks = -(-layout.state_layers // layout.states_per_block)
    return None if blocks == layout.state_blocks else "state_blocks"


def _undescribed(layout: KvLayout) -> KvLayout:
    unsaid = dict.fromkeys((*SAME_STATE, "state_layer_bytes"), 0)
    return msgspec.structs.replace(layout, **unsaid)


def _told(name: str, theirs: KvLayout, ours: KvLayout) -> Difference:
    return name, getattr(theirs, name), getattr(ours, name)


def _have_many_ranks(theirs: KvLayout, ours: KvLayout) -> bool:
    return max(theirs.tensor_parallel_size, ours.tensor_parallel_size) > MOST_RANKS


def _divide_blocks(theirs: KvLayout, ours: KvLayout) -> bool:
    small, large = sorted((theirs.block_size, ours.block_size))
    if ours.global_layers and small != large:  # rows of two widths have slots of two sizes
        return False
    slots = large // gcd(small, large)
    return large % small == 0 or (ours.state_layers > 0 and slots <= MOST_SLOTS)


def _shares_out(layout: KvLayout) -> bool:
    pairs = (sorted((kind.kv_heads, layout.tensor_parallel_size)) for kind in layout.kinds)
    return all(large % small == 0 for small, large in pairs)


def _is_made_of(row_bytes: int, layout: KvLayout) -> bool:
    """Whether all blocks have the size that follows from the other fields."""
    ranks = layout.tensor_parallel_size
    if layout.row_bytes != row_bytes:
        return False
    return layout.block_bytes == tuple(sum(layout.kind_bytes(rank)) for rank in range(ranks))
