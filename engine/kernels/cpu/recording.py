"""Work that is done once, and after that made again by its kernels' calls alone.

That is right where kernels are all that computes, where memory stays what it was between their
calls, and where what changes from one time to the next is told in tensors, not in Python. The
second is seen to here, and the first is watched: each operation of torch that is neither a view
nor new memory spoils what is recorded, and who asked goes on without.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from engine.kernels.cpu.library import Calls, Library

Made: TypeAlias = "Tensor | Sequence[Tensor]"
NEW = (torch.ops.aten.new_empty.default, torch.ops.aten.empty.memory_format)


class Arena:
    """Memory of what was recorded, for as long as there is an engine; one work at a time.

    What a work is done with goes to what it makes next, so that caches stay warm, and to the
    next that is recorded: only one of them runs at any time.
    """

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self._taken: list[StorageWeakRef | None] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The first memory that is large enough and that no tensor has."""
        size = prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        for index, (chunk, taken) in enumerate(zip(self._chunks, self._taken, strict=True)):
            if len(chunk) >= size and (taken is None or taken.expired()):
                return self._take(index, shape, dtype)
        self._chunks.append(torch.empty(size, dtype=torch.uint8))
        self._taken.append(None)
        return self._take(len(self._chunks) - 1, shape, dtype)

    def _take(self, index: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """With a storage of its own, which tells when the last view of it is gone."""
        bytes_of = self._chunks[index].numpy()
        made = torch.frombuffer(bytes_of, dtype=dtype, count=prod(shape))
        self._taken[index] = StorageWeakRef(made.untyped_storage())
        return made.view(shape)


class _Watch(TorchDispatchMode):
    """Gives memory of the arena, and notes what cannot be made again."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spoiled_by: str | None = None
        self._arena = arena

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing here is compiled, and to skip it torch loads its compiler, for 1.5 s."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Tensor, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Made:
        made: Made = func(*args, **(kwargs or {}))
        if func in NEW and isinstance(made, Tensor):
            return self._arena.empty(tuple(made.shape), made.dtype)
        if not func.is_view or not _lies_in(made, args[0]):
            self.spoiled_by = self.spoiled_by or str(func)
        return made


def _lies_in(made: Made, source: Tensor) -> bool:
    """A view may be a copy where its source has gaps."""
    parts = [made] if isinstance(made, Tensor) else made
    whole = source.untyped_storage().data_ptr()
    return all(part.untyped_storage().data_ptr() == whole for part in parts)


def record(
    library: Library, arena: Arena, work: Callable[[], Tensor]
) -> tuple[Tensor, Calls | str]:
    """What it made, and calls that make the same tensor again; or else what spoiled them."""
    watch = _Watch(arena)
    with library.remembering() as calls, watch:
        made = work()
    if watch.spoiled_by is not None:
        return made, watch.spoiled_by
    calls.keep(made)
    return made, calls
