"""The memory that holds all KV blocks: one flat allocation, block-major.

    [block, layer, part, kv_head, token, width]

The parts are keys and values, `head_dim` wide; or there is one part, whose rows serve as keys
and whose leading numbers serve as values (a latent, engine/models/latent_attention.py). A
block is one contiguous range for all layers, so a hand-over is a few large copies; each head's
part of it is contiguous too, so that a node with other heads can read just its own. Viewed as
rows of `width`, the memory is written token by token; viewed as rows of `token * width`, it is
gathered head by head into the [sequence, head, position, width] that attention needs, without
a second copy.

Layers may be of two kinds whose heads differ in number and width (Gemma 4's local and global
ones). Then each block has the local layers first, and the global ones behind them.

A model may keep a state of fixed size for each sequence beside its KV. That lies in blocks of
the same memory, some for each sequence, each of which holds the states of a few layers. So
whatever is done with blocks (leases, copies, checksums) is done with states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from engine.api import KvRegion
from engine.kernels.contract import Kernels
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.recurrent import LayerStates, RecurrentShape
from engine.kernels.stored import copyable, take, to_stored

ALIGNMENT = 64  # bytes


@dataclass(frozen=True, slots=True)
class StateShape:
    """What a sequence keeps beside its KV: in each of `layers`, a state of a `net`."""

    layers: int
    net: RecurrentShape

    @property
    def layer_bytes(self) -> int:
        """The bytes of one layer's state, in float32, and aligned."""
        return -(-self.net.numbers * torch.float32.itemsize // ALIGNMENT) * ALIGNMENT

    def blocks(self, block_bytes: int) -> int:
        """How many blocks one sequence's state takes; a block has to hold a layer's."""
        return -(-self.layers // (block_bytes // self.layer_bytes))


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Some layers whose KV is alike: of each token and head, rows of `width` numbers."""

    layers: int
    heads: int
    width: int

    @property
    def numbers(self) -> int:
        """Those of one part of a token, in all layers."""
        return self.layers * self.heads * self.width


@dataclass(frozen=True, slots=True)
class KvShape:
    """The KV of one token: in each layer and for each head, `parts` rows of `width` numbers.

    The value is the first `value_width` numbers of the last part's row; None: all of them.
    Numbers are `stored` in this type; None: in that of the model's computing. Each sequence has
    a `state` beside that, if the model keeps one. Behind these layers there may be
    `global_layers` of another kind, whose rows are as wide, or twice as wide.
    """

    layers: int
    heads: int
    width: int
    parts: int = 2
    value_width: int | None = None
    stored: torch.dtype | None = None
    state: StateShape | None = None
    global_layers: LayerKind | None = None

    @property
    def kinds(self) -> Sequence[LayerKind]:
        """The kinds of layers, in the order of their layers in a block."""
        first = LayerKind(self.layers, self.heads, self.width)
        return (first,) if self.global_layers is None else (first, self.global_layers)

    @property
    def numbers(self) -> int:
        """The total of numbers for one token."""
        return self.parts * sum(kind.numbers for kind in self.kinds)

    @property
    def state_layers(self) -> int:
        """The layers that keep a state."""
        return 0 if self.state is None else self.state.layers

    def token_bytes(self, dtype: torch.dtype) -> int:
        """The KV of one token, of a model that computes in `dtype`, in bytes."""
        return self.numbers * (self.stored or dtype).itemsize


KvMemoryArgs = tuple[KvShape, int, int, torch.dtype, torch.device, Kernels | None]
"""KvMemory's arguments: shape, blocks, tokens per block, dtype, device, kernels."""


class KvPlanes:
    """The layers of one kind in KV memory, counted from 0, and the rows of tokens in them.

    `flat` is the memory from these layers in block 0 on. `token_rows` is [n, width],
    `block_rows` is [n, block_size * width], of which a block has `rows_per_block`, in part
    those of other kinds; `blocks` is [block, layer, part, kv_head, token, width]. CPU
    `kernels` write and attend; without, plain torch does.
    """

    def __init__(
        self,
        shape: KvShape,
        kind: LayerKind,
        block_size: int,
        flat: Tensor,
        kernels: CpuKernels | None,
    ) -> None:
        self.kind, self.parts, self.value_width = kind, shape.parts, shape.value_width
        self.block_size, self.kernels = block_size, kernels
        self.block_rows = flat.view(-1, block_size * kind.width)
        self.token_rows = flat.view(-1, kind.width)
        self.rows_per_layer = shape.parts * kind.heads
        self.rows_per_block = shape.numbers // kind.width
        self.blocks = self._by_block()

    def _by_block(self) -> Tensor:
        """These layers as [block, layer, part, kv_head, token, width]."""
        kind, size = self.kind, self.block_size
        sizes = kind.layers, self.parts, kind.heads, size, kind.width
        strides = [prod(sizes[at:]) for at in range(1, len(sizes) + 1)]
        count = -(-len(self.block_rows) // self.rows_per_block)
        each = self.rows_per_block * size * kind.width
        return self.token_rows.as_strided((count, *sizes), (each, *strides))

    def rows(self, blocks: Tensor) -> Tensor:
        """Layer 0's rows of `block_rows`: [parts, .., heads, n] for blocks [.., n]."""
        parts, heads = self.parts, self.kind.heads
        each = torch.arange(parts * heads, device=blocks.device)
        each = each.view(parts, *[1] * (blocks.dim() - 1), heads, 1)
        return (blocks * self.rows_per_block).unsqueeze(-2) + each

    def slots(self, blocks: Tensor, positions: Tensor) -> Tensor:
        """Where each token's KV goes: [parts, tokens * heads], layer 0's rows of `token_rows`.

        `positions` [tokens] are in sequences, `blocks` [tokens] are those that they are in.
        """
        size = self.block_size
        rows = self.rows(blocks[:, None]).squeeze(-1)  # [parts, tokens, heads]
        return (rows * size + (positions % size)[:, None]).flatten(1).contiguous()

    def token_rows_of(self, layer: int) -> Tensor:
        """`token_rows` shifted so that layer 0's indices select this layer's rows."""
        return self.token_rows[layer * self.rows_per_layer * self.block_size :]

    def write(self, layer: int, slots: Tensor, *parts: Tensor) -> None:
        """Store keys and values, or latents, [tokens, heads, width] of one layer at `slots`."""
        ours = self.token_rows_of(layer)
        for at, part in zip(slots, parts, strict=True):
            if self.kernels is not None:
                self.kernels.write(ours, at, part)
                continue
            rows = to_stored(part.reshape(-1, self.kind.width), ours.dtype)
            copyable(ours).index_copy_(0, at, copyable(rows))

    def read(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [sequences, heads, positions, width or value_width] of one layer, in
        the type that they are stored in.

        `rows` [parts, sequences, heads, n] is the result of `rows` for each one's n blocks.
        """
        _, sequences, heads, count = rows.shape
        ours = take(self.block_rows[layer * self.rows_per_layer :], rows.flatten())
        parts = ours.view(-1, sequences, heads, count * self.block_size, self.kind.width)
        return parts[0], parts[-1][..., : self.value_width]


class KvMemory:
    """The tensor, its `planes` of each kind of layers, and the states in it.

    `block_rows` [n, block_size * width] is all of it, in rows of the first kind. The model
    computes in `dtype`, which is what is written, and what queries are. CPU kernels write to it
    and attend over it; other `kernels` are ignored, and plain torch is used without them. In
    float8_e4m3fn keys and values are rounded when they are written.
    """

    def __init__(
        self,
        shape: KvShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels | None = None,
    ) -> None:
        self.kernels = kernels if isinstance(kernels, CpuKernels) else None
        self.shape, self.block_size, self.num_blocks = shape, block_size, num_blocks
        self.dtype = dtype
        size = num_blocks * shape.numbers // shape.width, block_size * shape.width
        self.block_rows = self._zeros(size, shape.stored or dtype, device)
        self.planes = list[KvPlanes]()
        flat, first = self.block_rows.view(-1), 0
        for kind in shape.kinds:
            ours = flat[first * shape.parts * block_size :]
            self.planes.append(KvPlanes(shape, kind, block_size, ours, self.kernels))
            first += kind.numbers
        self._states = [self._states_of(layer) for layer in range(shape.state_layers)]
        self.state_blocks = self._states[-1].place + 1 if self._states else 0

    def _zeros(self, size: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate the memory."""
        return torch.empty(size, dtype=dtype, device=device).zero_()

    @property
    def regions(self) -> Sequence[KvRegion]:
        """The memory's address and sizes, for a KV connector."""
        tensor, size = self.block_rows, self.block_rows.element_size()
        block_bytes = self.block_size * self.shape.numbers * size
        return [KvRegion(tensor.data_ptr(), block_bytes, self.num_blocks, str(tensor.device))]

    @property
    def blocks(self) -> Tensor:
        """The first kind's layers as [block, layer, part, kv_head, token, width]."""
        return self.planes[0].blocks

    @property
    def bytes_of_blocks(self) -> Tensor:
        """All of it as bytes, [block, bytes]."""
        return self.block_rows.view(self.num_blocks, -1).view(torch.uint8)

    def place_of(self, layer: int) -> tuple[int, int]:
        """Which of the `planes` a layer is in, and its index there."""
        own = layer - self.shape.layers
        return (0, layer) if own < 0 else (1, own)

    def states(self, layer: int) -> LayerStates:
        """Where the states of `layer` lie, counted among the layers that have one."""
        return self._states[layer]

    def _states_of(self, layer: int) -> LayerStates:
        state, numbers = self.shape.state, self.bytes_of_blocks.view(torch.float32)
        assert state is not None, "a model with states"
        net, size = state.net, state.layer_bytes // torch.float32.itemsize
        place, at = divmod(layer, numbers.shape[1] // size)
        ours = numbers[:, at * size : at * size + net.numbers]
        memory, inputs = ours.split((net.keys_times_values, net.taps * net.channels), 1)
        return LayerStates(
            memory.unflatten(1, (net.value_heads, net.key_width, net.value_width)),
            inputs.unflatten(1, (net.taps, net.channels)),
            place,
        )

    def copy(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, from one to another each, in order."""
        if blocks:
            ours = self.bytes_of_blocks
            for source, target in blocks:
                ours[target].copy_(ours[source])

    def clear(self, blocks: Sequence[int]) -> None:
        """Overwrite some blocks with zeros."""
        if blocks:
            ids = torch.tensor(blocks, device=self.block_rows.device)
            self.bytes_of_blocks.index_fill_(0, ids, 0)

    def clear_behind(self, block: int, tokens: int) -> None:
        """Overwrite a block with zeros behind its first `tokens`."""
        for planes in self.planes:
            planes.blocks[block, ..., tokens:, :].zero_()
