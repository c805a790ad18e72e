"""Rotary embedding of heads by position; engine/models/rope.py makes its tables."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Rotation:
    """One rope at the positions of one batch.

    `table` [positions, 2, width] has cosines, and sines with the rotation's sign. They are
    looked up on first use, once for all layers. `scales` [positions] are factors of queries, if
    the model has such.
    """

    table: Tensor
    positions: Tensor  # [tokens]
    scales: Tensor | None = None
    _found: tuple[Tensor, Tensor] | None = None
    _factors: Tensor | None = None  # [tokens, 1, 1]

    @property
    def angles(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines [tokens, 1, width]."""
        if self._found is None:
            self._found = self._look_up()
        return self._found

    def renew(self) -> None:
        """Look the angles up again, in place, after `positions` were overwritten."""
        for found, new in zip(self.angles, self._look_up(), strict=True):
            found.copy_(new)
        self._factors = None

    def turn(self, heads: Tensor) -> Tensor:
        """Rotate [tokens, heads, width]; one half of a head is paired with the other."""
        cos, sin = self.angles
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        return torch.addcmul(heads * cos, swapped, sin)

    def scaled(self, queries: Tensor) -> Tensor:
        """[tokens, heads, width] queries, each times the factor of its position."""
        if self.scales is None:
            return queries
        if self._factors is None:
            self._factors = self.scales[self.positions][:, None, None]
        return queries * self._factors

    def _look_up(self) -> tuple[Tensor, Tensor]:
        cos, sin = self.table[self.positions].unsqueeze(2).unbind(1)
        return cos, sin
