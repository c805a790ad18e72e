"""How families choose a token's experts, as data. Torch-free.

All of them score every expert by a small product, take the best few and weight these by their
scores. They differ in how a score becomes a weight, and in which experts a token may choose.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]


class ExpertGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Experts in `count` groups of one size; a token chooses within the `chosen` best.

    A group's score is the sum of its `judged_by` best experts (DeepSeek-AI 2024,
    "DeepSeek-V2", section 2.2.2: device-limited routing).
    """

    count: Count
    chosen: Count
    judged_by: Count = 1


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """How a token's `top_k` of `num_experts` are chosen and weighted.

    `softmax` scores experts against one another, `sigmoid` each alone. `normalised` weights
    add up to one, which with softmax is the same as a softmax over the chosen alone. Finally
    all weights are multiplied by `scale`.
    """

    num_experts: Count
    top_k: Count
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = False
    scale: float = 1.0
    groups: ExpertGroups | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if there are too few experts to choose from."""
        if self.top_k > self.num_experts:
            raise ValueError(f"{self.top_k} experts per token, and only {self.num_experts}")
        if (groups := self.groups) is None:
            return
        size, rest = divmod(self.num_experts, groups.count)
        if rest or size < groups.judged_by:
            raise ValueError(f"{self.num_experts} experts do not make {groups.count} groups")
        if groups.chosen > groups.count or self.top_k > groups.chosen * size:
            raise ValueError(
                f"{groups.chosen} of {groups.count} groups of {size} experts are no choice "
                f"for {self.top_k} experts per token"
            )
