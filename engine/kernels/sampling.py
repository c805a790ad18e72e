"""The contracts of the sampling kernels on a device: from logits to tokens."""

from typing import NamedTuple, Protocol

from torch import Tensor

from engine.kernels.searching import Search
from engine.kernels.token_logprobs import GatherLogprobs


class ChooseTokens(Protocol):
    """Sample a token for each row of logits: temperature, truncation, Gumbel noise, largest."""

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
        """Sample from `logits` [rows, vocabulary] float32; settings are [rows], keys [rows, 2].

        `out` [rows] int64 is written to. Temperature 0 takes the largest. A row in which no
        token is left gets its token of `instead` [rows] int32, and its `alive` [rows] int32
        becomes 0. `search` must reach as far as any row needs.
        """


class AdjustLogits(Protocol):
    """Apply biases, bans and penalties (engine/kernels/gpu/sampling/adjusting.py)."""

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

        `latest` [rows] has a token of each row's answer that is missing in the lists, or -1.
        """


class ApplyBitmasks(Protocol):
    """Apply token bitmasks (engine/kernels/gpu/sampling/adjusting.py)."""

    def __call__(self, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
        """Set `rows` [n] of `logits` to minus infinity where `bits` [n, words] are 0."""


class SamplingKernels(NamedTuple):
    """All sampling kernels of a device."""

    choose: ChooseTokens
    adjust: AdjustLogits
    apply_bitmasks: ApplyBitmasks
    gather_logprobs: GatherLogprobs
