"""Reads the weights of experts that are stacked in one tensor."""

from collections.abc import Callable

from torch import Tensor

from engine.errors import UnusableCheckpoint

Take = Callable[..., Tensor]
"""Returns a tensor by name and shape, as it is in its file; None allows any size."""


def unstack(take: Take, name: str, experts: int, outputs: int, inputs: int) -> list[Tensor]:
    """Each expert's weight, [outputs, inputs]; raises UnusableCheckpoint for another shape.

    They are stacked as they are or, as Qwen3-VL's were published, [inputs, outputs] each. Where
    these are equal they are taken as they are, as in transformers.
    """
    stack = take(name, experts, None, None)
    if stack.shape[1:] == (outputs, inputs):
        return list(stack)
    if stack.shape[1:] == (inputs, outputs):
        return list(stack.mT)
    shapes = f"{tuple(stack.shape)}, the config says {(experts, outputs, inputs)}"
    raise UnusableCheckpoint(f"tensor {name} is {shapes}")
