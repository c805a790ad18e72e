"""Records a forward pass on the CPU, so that it can be replayed by its kernels' calls alone.

A replay is correct if all computation is done by kernels, if their memory stays in place, and
if everything that changes between runs is in tensors, not in Python. An Arena keeps the memory
in place. A dispatch mode watches torch: any operation that is neither a view nor an allocation
makes the recording unusable, and the caller continues without one.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from engine.kernels.cpu.library import Library, RecordedCalls

Made: TypeAlias = "Tensor | Sequence[Tensor]"
NEW = (torch.ops.aten.new_empty.default, torch.ops.aten.empty.memory_format)


class Arena:
    """The memory of recorded work, for the engine's lifetime.

    Memory that a tensor no longer uses is reused by the next tensor, so that CPU caches stay
    warm, and by other recordings, as only one of them runs at any time.
    """

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self._taken: list[StorageWeakRef | None] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor in the first chunk that is large enough and not in use."""
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
        """A tensor with a storage of its own, which shows when the last view of it is gone."""
        bytes_of = self._chunks[index].numpy()
        made = torch.frombuffer(bytes_of, dtype=dtype, count=prod(shape))
        self._taken[index] = StorageWeakRef(made.untyped_storage())
        return made.view(shape)


class _Watch(TorchDispatchMode):
    """Allocates from the arena, and notes the first operation that cannot be replayed."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spoiled_by: str | None = None
        self._arena = arena

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing here is compiled, and if True torch loads its compiler, for 1.5 s."""
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
    """Whether `made` shares its source's storage; even view operations copy at times."""
    parts = [made] if isinstance(made, Tensor) else made
    whole = source.untyped_storage().data_ptr()
    return all(part.untyped_storage().data_ptr() == whole for part in parts)


def record(
    library: Library, arena: Arena, work: Callable[[], Tensor]
) -> tuple[Tensor, RecordedCalls | str]:
    """Run `work`; returns its result, and the calls that recompute that tensor in place.

    If an operation cannot be replayed, returns its name instead of the calls.
    """
    watch = _Watch(arena)
    with library.recording() as calls, watch:
        made = work()
    if watch.spoiled_by is not None:
        return made, watch.spoiled_by
    calls.keep(made)
    return made, calls
