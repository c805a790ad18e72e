"""What is done with logits on a device, from masks to tokens: contracts of the kernels."""

from typing import NamedTuple, Protocol

from torch import Tensor

from engine.kernels.searching import Search
from engine.kernels.telling import Tell


class Choose(Protocol):
    """A token for each row of logits: temperature, truncation, noise, and the largest."""

    def __call__(  # noqa: PLR0913  as the kernel has it
        self,
        logits: Tensor,
        temperatures: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        keys: Tensor,
        *,
        instead: Tensor | None = None,
        out: Tensor,
        alive: Tensor | None = None,
        search: Search,
    ) -> Tensor:
        """`logits` [rows, vocabulary] float32; the others have a number, keys two, for each.

        `out` [rows] int64 is written to. Temperature 0 takes the largest. Where nothing is left
        the token is that of `instead` [rows] int32, and `alive` [rows] int32 becomes 0.
        `search` is what the rows ask for, or further.
        """


class Adjust(Protocol):
    """Biases, bans and penalties (engine/kernels/gpu/sampling/adjusting.py)."""

    def __call__(
        self,
        logits: Tensor,
        headers: Tensor,
        factors: Tensor,
        tokens: Tensor,
        values: Tensor,
        latest: Tensor | None = None,
    ) -> None:
        """Change some rows of `logits` [rows, vocabulary] float32 in place.

        `latest` [rows] has the token that a row's answer has beside, or -1.
        """


class Ban(Protocol):
    """Masks (engine/kernels/gpu/sampling/adjusting.py)."""

    def __call__(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        """Minus infinity at some `rows` [n] of `logits`, where `bits` [n, words] are 0."""


class DrawingKernels(NamedTuple):
    """All of them."""

    choose: Choose
    adjust: Adjust
    ban: Ban
    tell: Tell
