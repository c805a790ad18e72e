"""What models ask of kernels, whatever they are written in and wherever they run.

Plain torch does all of it where there are none: each kernel has a twin there.
"""

from collections.abc import Collection
from typing import Protocol

from torch import Tensor


class Linear(Protocol):
    """y = x W^T + b, for x [tokens, inputs] and W [outputs, inputs]."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """[tokens, inputs] to [tokens, outputs]."""


class Kernels(Protocol):
    """For one kind of device; opened once, and handed to all parts of a model."""

    @property
    def gates(self) -> Collection[str]:
        """The activations that `gated` knows, by their names in configs."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear | None:
        """A product of its own with `weight` [outputs, inputs]; None: torch's is as good."""

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight over the last dimension, of [tokens, size] or of heads besides.

        `weight` is of the same dtype, or float32.
        """

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        """The norm of residual + scale * inputs, and that sum; all [tokens, size]."""

    def gated(self, gate_up: Tensor, gate: str) -> Tensor:
        """[rows, 2 * size] to [rows, size]: activate(gate) * up, gates first."""
