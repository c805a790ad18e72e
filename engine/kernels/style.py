"""How a layer attends: what differs between layers and families, and nothing of the batch."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionStyle:
    """A score is softcap * tanh(scale * query . key / softcap); uncapped, the inner part.

    `window` is how many tokens a query sees, its own included; None: all before it. `sinks`
    [heads] are one more score per head that only takes part in the softmax's sum (gpt-oss):
    a query may thereby look at nothing.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
