"""The matrices that make each head's keys and values of latents, and what they multiply."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.latents import LatentSizes
from engine.checkpoints.linear import multiplies_halves


@dataclass(frozen=True, slots=True, eq=False)
class LatentHeads:
    """Matrices of all heads; `rope` is the width of the rotated key behind a latent."""

    keys: Tensor  # [heads, plain size, rank]
    values: Tensor  # [heads, rank, value size]
    rope: int

    def __len__(self) -> int:
        """The number of heads."""
        return len(self.keys)

    @property
    def sizes(self) -> LatentSizes:
        """The widths of all that is multiplied."""
        _, plain, rank = self.keys.shape
        return LatentSizes(rank, self.rope, plain, self.values.shape[2])

    def absorb(self, plain: Tensor) -> Tensor:
        """Queries [tokens, heads, plain size] to ones for latents [tokens, heads, rank + rope],
        whose rotated numbers are still to be written.
        """
        rank = self.keys.shape[2]
        absorbed = plain.new_empty(*plain.shape[:2], rank + self.rope)
        multiply(plain.transpose(0, 1), self.keys, absorbed[..., :rank].transpose(0, 1))
        return absorbed

    def values_of(self, read: Tensor) -> Tensor:
        """Weighted latents [tokens, heads * rank] to values [tokens, heads * value size]."""
        heads, rank, _ = self.values.shape
        weighted = read.view(len(read), heads, rank).transpose(0, 1)
        return product(weighted, self.values).transpose(0, 1).flatten(1)

    def expand(self, latents: Tensor, some: slice) -> Tensor:
        """[tokens, rank + rope] to keys and values of some heads [2, heads, tokens, key size].

        Numbers of a value's row behind the value are arbitrary.
        """
        sizes, keys, values = self.sizes, self.keys[some], self.values[some]
        made = latents.new_empty(2, len(keys), len(latents), sizes.key)
        rows = latents[None, :, : sizes.rank].expand(len(keys), -1, -1)
        multiply(rows, keys.transpose(1, 2), made[0, ..., : sizes.plain])
        made[0, ..., sizes.plain :] = latents[:, sizes.rank :]
        multiply(rows, values, made[1, ..., : sizes.value])
        return made


def multiply(rows: Tensor, matrices: Tensor, into: Tensor) -> None:
    """The `product`, written into any part of a larger tensor.

    On a CPU it is copied there, as writing directly takes three times as long.
    """
    if into.is_cuda:
        torch.bmm(rows, matrices, out=into)
    else:
        into.copy_(product(rows, matrices))


def product(rows: Tensor, matrices: Tensor) -> Tensor:
    """A product for each head: [heads, rows, inner] by [heads, inner, columns].

    In float32 where torch would multiply halves one number at a time.
    """
    halves = rows.device.type == "cpu" and rows.itemsize == 2
    if halves and not multiplies_halves(rows.dtype):
        return torch.bmm(rows.float(), matrices.float()).to(rows.dtype)
    return torch.bmm(rows, matrices)
