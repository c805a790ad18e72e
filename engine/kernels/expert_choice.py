"""How a token's experts follow from the router's logits: the rule, and plain torch."""

from dataclasses import dataclass

from torch import Tensor

TINY = 1e-20  # where all chosen scores are zero, weights are zero too


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """A token's `top_k` best experts, weighted by their scores.

    A score is a `sigmoid` of the expert's own logit, or else a softmax over all experts.
    `normalised` weights add up to one; finally all are multiplied by `scale`.
    """

    top_k: int
    sigmoid: bool = False
    normalised: bool = False
    scale: float = 1.0


def scores_of(logits: Tensor, rule: ChoiceRule) -> Tensor:
    """[tokens, experts] to the same."""
    return logits.sigmoid() if rule.sigmoid else logits.softmax(-1)


def take_best(scores: Tensor, wanted: Tensor, rule: ChoiceRule) -> tuple[Tensor, Tensor]:
    """The experts with the largest `wanted` [tokens, experts]: weights and ids [tokens, top_k].

    Best first. Weights are made of `scores` [tokens, experts].
    """
    chosen = wanted.topk(rule.top_k, dim=-1).indices
    weights = scores.gather(1, chosen)
    if rule.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + TINY)
    return weights * rule.scale, chosen


def choose_experts_twin(
    logits: Tensor, rule: ChoiceRule, correction: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each token's experts by its logits [tokens, experts]: weights and ids, [tokens, top_k].

    `correction` [experts] is added to scores for the choice alone. Without it logits decide:
    their order is that of scores, and they tie less often.
    """
    scores = scores_of(logits, rule)
    wanted = logits if correction is None else scores + correction
    return take_best(scores, wanted, rule)
