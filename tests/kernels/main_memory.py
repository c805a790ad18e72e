"""Tensors of main memory, told from a device's where both are the CPU's.

On a GPU a kernel that is given one fails. Where a CPU is taken for the device it would not.
"""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class MainMemory(TorchFunctionMode):
    """Knows, of what is made while it is entered, tensors for which nobody named a device.

    What is made of these alone is one of them, until it is sent to a device.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known = dict[int, weakref.ref[Tensor]]()

    def has(self, one: object) -> bool:
        """Whether it is one of them."""
        return id(one) in self._known

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401  as torch calls it
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """See TorchFunctionMode."""
        more = dict(kwargs or {})
        made = func(*args, **more)
        if not isinstance(made, Tensor):
            return made
        told = [*args, *more.values()]
        sent = any(isinstance(one, torch.device) for one in told)
        told += [part for one in told if isinstance(one, list | tuple) for part in one]
        given = [one for one in told if isinstance(one, Tensor)]
        ours = all(map(self.has, given)) and not sent
        if func is Tensor.to and not ours and self.has(made):
            return made.clone()  # on a device it is another
        if ours and not self.has(made):
            key = id(made)
            self._known[key] = weakref.ref(made, lambda _: self._known.pop(key, None))
        return made
