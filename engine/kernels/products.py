"""Products with the weights of one or of many experts: the contract, and plain torch.

Plain torch runs anywhere, but slowly, because it dequantizes a weight in each product. It is
the reference for the kernels in engine/kernels/gpu/products.py.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kernels.expert_choice import ChoiceRule, choose_experts_twin
from engine.kernels.lora import AdapterStack, SortedRows, add_adapters_twin
from engine.kernels.rows import Rows
from engine.kernels.weights import Weight, quantized_inputs, wide


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Which rows an expert multiplies: the sorted rows offsets[e] .. offsets[e + 1] - 1.

    If each input row is used `times` times, sorted row i reads input row sources[i] // times,
    and writes to output row targets[i]; None: both are sorted already. `partly`: the offsets do
    not cover all rows, because some belong to other ranks' experts.
    """

    offsets: Tensor  # [experts + 1] int32
    sources: Tensor | None = None  # [sorted rows] int32
    targets: Tensor | None = None  # [sorted rows] int32
    times: int = 1
    partly: bool = False


class Products(Protocol):
    """Matrix products with such weights, in plain torch (below) or by kernels."""

    def multiply(self, rows: Rows, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """[rows, inputs] to [rows, outputs]: x W^T + b, with a weight of one expert.

        `bias` [1, outputs]. Rows for an fp8 weight are quantized, if they were not yet.
        """

    def grouped(self, rows: Rows, route: Route, weight: Weight, bias: Tensor | None) -> Tensor:
        """[sorted rows, outputs]: each row times its own expert's weight, and its bias.

        `bias` [experts, outputs]. With a route that is `partly`, rows of no expert are zero.
        """

    def score(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A router's logits: [tokens, inputs] by [experts, inputs] to [tokens, experts].

        They are of the dtype of `weight`, to which the rows are widened.
        """

    def choose(
        self, logits: Tensor, rule: ChoiceRule, correction: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Each token's experts by its logits [tokens, experts] float32, best first.

        Returns weights, and ids as int64, both [tokens, top_k]. `correction` [experts] is added
        to scores for the choice alone.
        """

    def sort(self, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
        """Sort [tokens, top_k] expert ids stably: their order, and where each expert's begin.

        Order [tokens * top_k] int32 has indices into `chosen`, flattened; offsets are
        [experts + 1] int32.
        """

    def add_adapters(
        self, outputs: Tensor, inputs: Tensor, rows: SortedRows, stack: AdapterStack
    ) -> Tensor:
        """Add to `outputs` [rows, outputs] what each row's LoRA adapter makes of its `inputs`.

        Returns `outputs`, which are changed.
        """

    def combine(self, answers: Tensor, weights: Tensor) -> Tensor:
        """The sum of [tokens, top_k, size] weighted by [tokens, top_k], in order of choice."""


@dataclass(frozen=True, slots=True)
class TorchProducts:
    """See Products; slow, on any device."""

    def multiply(self, rows: Rows, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """See Products."""
        answer = quantized_inputs(rows, weight) @ weight.whole(0, wide(rows)).T
        return (answer if bias is None else answer + bias[0]).to(rows.dtype)

    def grouped(self, rows: Rows, route: Route, weight: Weight, bias: Tensor | None) -> Tensor:
        """See Products."""
        ours = quantized_inputs(rows, weight)
        if route.sources is not None:
            ours = ours[route.sources.long() // route.times]
        answers = ours.new_zeros(len(ours), weight.shape[1])
        for expert, (first, end) in enumerate(pairwise(route.offsets.tolist())):
            if first == end:
                continue
            answer = ours[first:end] @ weight.whole(expert, ours.dtype).T
            answers[first:end] = answer if bias is None else answer + bias[expert]
        if route.targets is not None:
            answers = torch.empty_like(answers).index_copy_(0, route.targets.long(), answers)
        return answers.to(rows.dtype)

    def score(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Products."""
        return F.linear(rows.to(weight.dtype), weight, bias)

    def choose(
        self, logits: Tensor, rule: ChoiceRule, correction: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See Products."""
        return choose_experts_twin(logits, rule, correction)

    def sort(self, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
        """See Products."""
        ids, order = chosen.flatten().sort(stable=True)
        firsts = torch.arange(experts + 1, device=ids.device)
        return order.int(), torch.searchsorted(ids, firsts, out_int32=True)

    def add_adapters(
        self, outputs: Tensor, inputs: Tensor, rows: SortedRows, stack: AdapterStack
    ) -> Tensor:
        """See Products."""
        return add_adapters_twin(outputs, inputs, rows, stack)

    def combine(self, answers: Tensor, weights: Tensor) -> Tensor:
        """See Products."""
        return (answers * weights.unsqueeze(-1)).sum(1).to(answers.dtype)
