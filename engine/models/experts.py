"""A layer of experts: each token goes through a few of many small networks.

Tokens are sorted by expert, so that an expert multiplies all of its tokens at once, and the
weights of an expert that no token chose are not read. Each token's results are then weighted
and added up in the order of its own choices, never in the order of the batch, so that an answer
does not depend on what else is in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.checkpoints.linear import Linear
from engine.checkpoints.storage import ExpertStack
from engine.kernels.expert_choice import ChoiceRule, scores_of, take_best
from engine.kernels.products import Products, Route, TorchProducts
from engine.kernels.rows import Rows, whole_rows
from engine.models.mlp import Activation, Gate, GatedMlp, UngatedMlp
from engine.models.routing import ExpertGroups, Routing


def gated(both: Tensor, activate: Activation = F.silu) -> Tensor:
    """[rows, 2 * width] to [rows, width] (Shazeer 2020); gates first, then ups."""
    gate, up = both.chunk(2, dim=-1)
    return activate(gate) * up


def clamped_swiglu(both: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """gpt-oss's activation: a steeper sigmoid, an offset, and inputs clamped to a limit."""
    gate, up = both.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """Scores experts and chooses each token's, in the dtype of `weight`: float32 outside tests.

    In half precision close scores would often be equal, and the choice arbitrary.
    """

    routing: Routing
    weight: Tensor  # [experts, hidden]
    bias: Tensor | None = None  # [experts], part of the score
    correction: Tensor | None = None  # [experts], only for the choice: balances load
    factors: Tensor | None = None  # [experts], of the weights of those that are chosen
    products: Products = field(default_factory=TorchProducts)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[tokens, hidden] to weights and expert ids, both [tokens, top_k]."""
        return self.choose(self.products.score(hidden, self.weight, self.bias))

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The same of [tokens, experts] that are scored already."""
        weights, chosen = self._take(logits)
        return weights if self.factors is None else weights * self.factors[chosen], chosen

    def _take(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        routing, rule = self.routing, _rule_of(self.routing)
        if routing.groups is None:
            return self.products.choose(logits, rule, self.correction)
        scores = scores_of(logits, rule)
        wanted = scores if self.correction is None else scores + self.correction
        return take_best(scores, _within_groups(wanted, routing.groups), rule)


@dataclass(frozen=True, slots=True, eq=False)
class Expert:
    """One small network; the rows of `gate_up` are all gates (of some, none), then all ups."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, eq=False)
class SharedExpert:
    """A network that every token goes through, weighted by a sigmoid if there is a gate."""

    mlp: GatedMlp | UngatedMlp
    gate: Linear | None = None

    def __call__(self, hidden: Rows) -> Tensor:
        """[tokens, hidden] to the same."""
        answer = self.mlp(hidden)
        return answer if self.gate is None else answer * self.gate(hidden).sigmoid()


class Experts(Protocol):
    """All experts of a layer, or this rank's; the others' results are zeros."""

    def __call__(self, hidden: Rows, weights: Tensor, chosen: Tensor) -> Tensor:
        """The weighted sum of the results of each token's experts, [tokens, hidden].

        `hidden` [tokens, hidden]; `weights`, `chosen` [tokens, top_k].
        """


@dataclass(frozen=True, slots=True, eq=False)
class LoopedExperts:
    """Experts that multiply one after the other, each its own tokens.

    `gating` turns an expert's gates and ups, [rows, 2 * width], or its ups alone, into the
    input of `down`.
    """

    each: Sequence[Expert]
    gating: Activation

    def __call__(self, hidden: Rows, weights: Tensor, chosen: Tensor) -> Tensor:
        """See Experts."""
        hidden = whole_rows(hidden)
        weighed = self._answers(hidden, chosen) * weights.unsqueeze(-1)  # in the router's dtype
        return weighed.sum(1).to(hidden.dtype)

    def _answers(self, hidden: Tensor, chosen: Tensor) -> Tensor:
        """[tokens, top_k, hidden]."""
        tokens, top_k = chosen.shape
        ids = chosen.flatten()
        order = ids.argsort(stable=True)
        every = torch.bincount(ids, minlength=len(self.each)).tolist()
        counts = [count for count in every if count]
        used = [self.each[index] for index, count in enumerate(every) if count]
        rows = hidden[order.div(top_k, rounding_mode="floor")].split(counts)
        middle = torch.cat(
            [expert.gate_up(ours) for expert, ours in zip(used, rows, strict=True)]
        )
        middle = self.gating(middle)
        sorted_answers = torch.cat(
            [expert.down(ours) for expert, ours in zip(used, middle.split(counts), strict=True)]
        )
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return sorted_answers[back].view(tokens, top_k, -1)


@dataclass(frozen=True, slots=True, eq=False)
class StackedExperts:
    """Experts that multiply in one launch; the choice is never read back to the host.

    Of `count` experts, this rank has those from `first` on.
    """

    gate_up: ExpertStack
    down: ExpertStack
    gating: Gate
    products: Products
    count: int
    first: int = 0

    def __call__(self, hidden: Rows, weights: Tensor, chosen: Tensor) -> Tensor:
        """See Experts."""
        tokens, top_k = chosen.shape
        order, offsets = self.products.sort(chosen, self.count)
        here = self.gate_up.weight.shape[0]
        ours, partly = offsets[self.first : self.first + here + 1], here < self.count
        inward = Route(ours, sources=order, times=top_k, partly=partly)
        outward = Route(ours, targets=order, partly=partly)
        middle = self._multiply(hidden, inward, self.gate_up)
        answers = self._multiply(self.gating(middle), outward, self.down)
        return self.products.combine(answers.view(tokens, top_k, -1), weights)

    def _multiply(self, rows: Rows, route: Route, stack: ExpertStack) -> Tensor:
        return self.products.grouped(rows, route, stack.weight, stack.bias)


@dataclass(frozen=True, slots=True, eq=False)
class LatentExperts:
    """Experts that read and write fewer numbers than hidden states have."""

    inward: Linear
    experts: Experts
    outward: Linear

    def __call__(self, hidden: Rows, weights: Tensor, chosen: Tensor) -> Tensor:
        """See Experts."""
        return self.outward(self.experts(self.inward(hidden), weights, chosen))


@dataclass(frozen=True, slots=True, eq=False)
class SparseMlp:
    """A layer's router, its experts, and its shared expert, if any."""

    router: Router
    experts: Experts
    shared: SharedExpert | None = None

    def __call__(self, normed: Rows) -> Tensor:
        """See Mlp in engine/models/decoder.py. The router needs unquantized rows."""
        weights, chosen = self.router(whole_rows(normed))
        mixed = self.experts(normed, weights, chosen)
        return mixed if self.shared is None else mixed + self.shared(normed)


def _rule_of(routing: Routing) -> ChoiceRule:
    sigmoid = routing.scoring == "sigmoid"
    return ChoiceRule(routing.top_k, sigmoid, routing.normalised, routing.scale)


def _within_groups(wanted: Tensor, groups: ExpertGroups) -> Tensor:
    """The scores, with -inf outside each token's best groups."""
    grouped: Tensor = wanted.unflatten(-1, (groups.count, -1))  # [tokens, groups, experts]
    quality = grouped.topk(groups.judged_by, dim=-1).values.sum(-1)
    best = quality.topk(groups.chosen, dim=-1).indices
    closed = torch.ones_like(quality, dtype=torch.bool).scatter_(1, best, value=False)
    open_only: Tensor = grouped.masked_fill(closed.unsqueeze(-1), -torch.inf)
    return open_only.flatten(1)
