"""How a layer attends: settings of layers and families, independent of the batch."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionStyle:
    """A score is softcap * tanh(scale * query . key / softcap); uncapped, scale * query . key.

    `window` is how many tokens a query sees, including its own; None: all before it. `sinks`
    [heads] are one more score per head that only takes part in the softmax's sum (gpt-oss), so
    that a query can attend to almost nothing.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
