"""Loads a checkpoint's weights for a model: tensors by name, and fused linear layers.

On a CPU the files are memory-mapped, not read. A large tensor that the model uses unchanged
stays mapped, and only pages that are read come into memory; every other tensor is copied once,
into its place. For other devices see engine/checkpoints/store.py. A missing tensor, an unknown
one, or one of the wrong shape is refused by name.

So the files of a running model must not be written to. Replacing them by renaming, as the
Hugging Face cache does, is safe.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from rich.progress import Progress
from torch import Tensor

from engine.checkpoints.linear import Linear, linear
from engine.checkpoints.packed import (
    MARKS,
    STACKED_SCALES,
    STATIC,
    left_over,
    read_packed,
    read_stack,
)
from engine.checkpoints.packing import Packing
from engine.checkpoints.progress import loading_progress
from engine.checkpoints.stacked import unstack
from engine.checkpoints.storage import ExpertStack, LinearFactory
from engine.checkpoints.store import File, RenamedTensor, Tensors, TensorStore
from engine.checkpoints.text_names import WRAPPED
from engine.errors import UnusableCheckpoint
from engine.kernels.contract import DualOutputNorms, Kernels, QuantizedOutputKernels
from engine.kernels.weights import (
    Weight,
    concat_outputs,
    multiplied,
    reordered,
    same_input_order,
)
from engine.lora.stacking import AdapterStacker
from engine.sharding.group import RankGroup

WEIGHT = ".weight"
MAPPED_BYTES = 1 << 20

Parts = Callable[[Mapping[str, File]], Mapping[str, Tensors]]
"""Picks, from all tensors, this rank's parts of them (engine/models/shards.py)."""


@dataclass(slots=True)
class WeightLoader:
    """All tensors of a checkpoint by name; each is taken once, and none may be left over.

    `factors`: what packed products are multiplied by, all outputs or each, by their names.
    """

    files: dict[str, Tensors]
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels | None = None
    progress: Progress | None = None
    storage: LinearFactory | None = None
    packing: Packing | None = None
    group: RankGroup | None = None
    adapters: AdapterStacker | None = None
    factors: dict[str, float | Tensor] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        """Whether the tensor exists and has not been taken yet."""
        return self.stored(name) in self.files

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor in `dtype`, or the model's, on its device; a large one may stay mapped."""
        tensor = self.whole(name, *shape)
        placed = tensor.to(self.device, dtype or self.dtype)
        return placed.clone() if placed is tensor and tensor.nbytes < MAPPED_BYTES else placed

    def whole(self, name: str, *shape: int) -> Tensor:
        """A tensor as it is in its file, read only: copy it by `place`.

        A quantized weight is dequantized to float32.
        """
        if self.packs(at := name.removesuffix(WEIGHT)) and at != name:
            return self._read_packed(at, *shape).whole(0)
        return self._read(name, *shape)

    def _read(self, name: str, *shape: int | None) -> Tensor:
        """A tensor as it is in its file; a size of None allows any."""
        if name not in self:
            raise UnusableCheckpoint(f"tensor {name} is missing")
        stored = self.stored(name)
        tensor: Tensor = self.files.pop(stored).get_tensor(stored)
        if len(shape) == 1 and tensor.shape in ((), (1, *shape)):
            tensor = tensor.view(-1)  # some files have a scalar for it, or a matrix of one row
        if not _fits(tensor, shape):
            shapes = f"{tuple(tensor.shape)}, the config says {shape}"
            raise UnusableCheckpoint(f"tensor {name} is {shapes}")
        if self.progress is not None:
            self.progress.advance(self.progress.task_ids[0], tensor.nbytes)
        return tensor

    def place(self, part: Tensor) -> Tensor:
        """A copy of part of a tensor, row by row, in the model's dtype, on its device."""
        target = torch.empty(part.shape, dtype=self.dtype, device=self.device)
        return target.copy_(part)

    def fuse(
        self,
        at: str,
        parts: Mapping[str, int],
        inputs: int,
        *,
        bias: bool,
        order: Tensor | None = None,
    ) -> Linear:
        """Fuse several linear layers of the same input (as q, k and v) into one.

        Their output rows are concatenated, then permuted by `order` [outputs] if it is given.
        Their LoRA adapters are fused likewise.
        """
        fused = self._fuse(at, parts, inputs, bias=bias, order=order)
        if self.adapters is None:
            return fused
        return self.adapters.around(fused, at, parts, inputs, order)

    def _fuse(
        self,
        at: str,
        parts: Mapping[str, int],
        inputs: int,
        *,
        bias: bool,
        order: Tensor | None,
    ) -> Linear:
        if all(self.packs(f"{at}{name}") for name in parts):
            return self._fuse_packed(at, parts, inputs, bias=bias, order=order)
        if len(parts) == 1 and order is None:
            ((name, outputs),) = parts.items()
            alone = self.take(f"{at}{name}.bias", outputs) if bias else None
            return self.linear(self.take(f"{at}{name}.weight", outputs, inputs), alone)
        rows = sum(parts.values())
        weight = torch.empty((rows, inputs), dtype=self.dtype, device=self.device)
        offsets = torch.empty(rows, dtype=self.dtype, device=self.device) if bias else None
        first = 0
        for name, outputs in parts.items():
            self._copy(f"{at}{name}.weight", weight[first : first + outputs])
            if offsets is not None:
                self._copy(f"{at}{name}.bias", offsets[first : first + outputs])
            first += outputs
        if order is not None:
            order = order.to(self.device)
            weight, offsets = weight[order], None if offsets is None else offsets[order]
        return self.linear(weight, offsets)

    def stacked_linears(self, name: str, count: int, outputs: int, inputs: int) -> list[Linear]:
        """The linear layers of `count` experts whose weights are stacked in one tensor."""
        if self.packing is not None and f"{name}{STACKED_SCALES}" in self:
            assert self.storage is not None, "checked before anything is read"
            stack = read_stack(self._read_placed, name, count, outputs, inputs)
            return [self.storage.packed(one, None) for one in stack]
        weights = unstack(self._read, name, count, outputs, inputs)
        return [self.linear(self.place(one)) for one in weights]

    def _mark(self, at: str) -> str | None:
        """The tensor that shows that the layer `at` is stored quantized; None if it is not."""
        marks = MARKS[self.packing.layout] if self.packing is not None else ()
        return next((one for one in marks if f"{at}.{one}" in self), None)

    def packs(self, at: str) -> bool:
        """Whether the layer `at` is stored quantized."""
        return self._mark(at) is not None

    def _read_packed(self, at: str, outputs: int, inputs: int) -> Weight:
        mark = self._mark(at)
        assert self.packing is not None, "it was seen"
        assert mark is not None, "it was seen"
        if self.packing.static:
            for name in STATIC:
                self.drop(self.stored(f"{at}.{name}"))
        ranks = 1 if self.group is None else self.group.shard.size
        sizes, factor = (outputs, inputs), self.factors.get(at)
        weight = read_packed(self.packing, self._read_placed, at, mark, sizes, ranks)
        return weight if factor is None else multiplied(weight, factor)

    def _read_placed(self, name: str, *shape: int | None) -> Tensor:
        return self._read(name, *shape).to(self.device)

    def _fuse_packed(
        self,
        at: str,
        parts: Mapping[str, int],
        inputs: int,
        *,
        bias: bool,
        order: Tensor | None,
    ) -> Linear:
        """See fuse, for quantized weights: rows are fused with their scales as they are."""
        assert self.storage is not None, "checked before anything is read"
        weights = [
            self._read_packed(f"{at}{name}", rows, inputs) for name, rows in parts.items()
        ]
        for name, one in zip(parts, weights, strict=True):
            if not same_input_order(weights[0], one):
                why = f"another order than {next(iter(parts))}'s of the same inputs"
                raise UnusableCheckpoint(f"tensor {at}{name}.g_idx: {why}")
        weight = concat_outputs(weights)
        offsets = None
        if bias:
            offsets = torch.cat([self.take(f"{at}{one}.bias", n) for one, n in parts.items()])
        if order is not None:
            order = order.to(self.device)
            weight = reordered(weight, order)
            offsets = None if offsets is None else offsets[order]
        return self.storage.packed(weight, offsets)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """See LinearFactory.linear, or else engine/checkpoints/linear.py."""
        if self.storage is not None:
            return self.storage.linear(weight, bias)
        return linear(weight, bias, self.kernels)

    def head(self, weight: Tensor) -> Linear:
        """The LM head, from hidden states to logits."""
        if self.storage is not None:
            return self.storage.head(weight)
        return linear(weight, None, self.kernels)

    def quantized_kernels_for(
        self, product: Linear | ExpertStack | None
    ) -> QuantizedOutputKernels | None:
        """See LinearFactory.quantized_kernels_for."""
        return None if self.storage is None else self.storage.quantized_kernels_for(product)

    def dual_norms_for(self, product: Linear | ExpertStack | None) -> DualOutputNorms | None:
        """See LinearFactory.dual_norms_for."""
        return None if self.storage is None else self.storage.dual_norms_for(product)

    def drop(self, name: str) -> None:
        """Ignore a tensor that may be there."""
        self.files.pop(name, None)

    def rename(self, name_of: Callable[[str], str | None]) -> None:
        """Give all tensors other names; those without one are left out."""
        kept = dict[str, Tensors]()
        for name, file in self.files.items():
            if (ours := name_of(name)) is not None:
                kept[ours] = file if ours == name else RenamedTensor(file, name)
        self.files = kept

    def drop_all(self, at: str) -> None:
        """Ignore all tensors under a name."""
        names = at, at.removeprefix(WRAPPED)
        for name in [name for name in self.files if name.startswith(names)]:
            self.drop(name)

    def check_all_taken(self) -> None:
        """Raises UnusableCheckpoint if tensors are left: they belong to another model.

        Raises UnusableAdapter if factors of an adapter are left.
        """
        if self.adapters is not None:
            self.adapters.check_all_taken()
        if left := left_over(self.packing, self.files):
            raise UnusableCheckpoint(f"{len(left)} tensors too many, such as {left[0]}")

    def stored(self, name: str) -> str:
        """A tensor's name in the files."""
        return name if name in self.files else name.removeprefix(WRAPPED)

    def _copy(self, name: str, target: Tensor) -> None:
        target.copy_(self.whole(name, *target.shape))


def _fits(tensor: Tensor, shape: Sequence[int | None]) -> bool:
    if tensor.dim() != len(shape):
        return False
    return all(size in (None, there) for size, there in zip(shape, tensor.shape, strict=True))


@contextmanager
def open_weights(
    store: TensorStore,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels | None = None,
    parts: Parts = dict,
) -> Iterator[WeightLoader]:
    """A loader over all tensors of `store`, or `parts` of them, with a progress bar.

    Raises UnusableCheckpoint at the end if a tensor was not taken.
    """
    with loading_progress(store) as progress:
        loader = WeightLoader(dict(parts(store.tensors)), dtype, device, kernels, progress)
        yield loader
        loader.check_all_taken()
