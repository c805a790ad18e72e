"""A layer of experts' launches: choosing, sorting tokens, two grouped products, combining."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row, Run
from bench.gpu.rows.stored import EIGHT, FOUR, Formats
from bench.gpu.shapes import Shape
from engine.kernels.expert_choice import ChoiceRule
from engine.kernels.floor import Floor
from engine.kernels.gpu.expert_choice import choice_floor
from engine.kernels.gpu.products import TritonProducts, product_floor
from engine.kernels.gpu.sorting import combine_floor, sort_floor
from engine.kernels.products import Route, TorchProducts
from engine.kernels.weights import PlainWeight, Weight

FORMATS: Formats = {"whole": PlainWeight, **EIGHT, **FOUR}


def rows(shape: Shape) -> Iterator[Row]:
    """For each batch of a decode step, and for a prompt."""
    if not shape.num_experts:
        return
    width, hidden = shape.moe_intermediate_size, shape.hidden_size
    for tokens in (*shape.batches, shape.prefill):
        yield Row("expert scores", f"{tokens} tokens", partial(_scores, shape, tokens))
        yield Row("expert choice", f"{tokens} tokens", partial(_choice, shape, tokens))
        yield Row("expert sort", f"{tokens} tokens", partial(_sort, shape, tokens))
        yield Row("expert combine", f"{tokens} tokens", partial(_combine, shape, tokens))
        for name, outputs, inputs in (("in", 2 * width, hidden), ("out", hidden, width)):
            for called, form in FORMATS.items():
                setting = f"{called}, {name} {outputs} x {inputs}, {tokens} tokens"
                make = partial(_product, shape, form, (tokens, outputs, inputs))
                yield Row("grouped product", setting, make)


def _scores(shape: Shape, tokens: int, device: torch.device) -> Prepared:
    """A router's product, in float32."""
    experts, hidden, itemsize = shape.num_experts, shape.hidden_size, shape.dtype.itemsize
    given = torch.randn(tokens, hidden, dtype=shape.dtype, device=device)
    weight = torch.randn(experts, hidden, device=device)
    ours, twin = (
        partial(one.score, given, weight, None) for one in (TritonProducts(), TorchProducts())
    )
    moved = weight.nbytes + tokens * (hidden * itemsize + 4 * experts)
    floor = Floor(moved, 2 * tokens * experts * hidden)
    return Prepared(ours, floor, twin, {"torch": lambda: twin})


def _choice(shape: Shape, tokens: int, device: torch.device) -> Prepared:
    logits = torch.randn(tokens, shape.num_experts, device=device)
    rule = ChoiceRule(shape.num_experts_per_tok, normalised=True)
    ours, twin = (
        partial(one.choose, logits, rule, None) for one in (TritonProducts(), TorchProducts())
    )
    floor = choice_floor(tokens, shape.num_experts, shape.num_experts_per_tok)
    return Prepared(ours, floor, twin, {"torch": lambda: twin})


def _sort(shape: Shape, tokens: int, device: torch.device) -> Prepared:
    chosen = chosen_at_random(shape, tokens).to(device)
    ours, twin = (
        partial(one.sort, chosen, shape.num_experts)
        for one in (TritonProducts(), TorchProducts())
    )
    return Prepared(ours, sort_floor(chosen), twin, {"torch sort": lambda: twin})


def _combine(shape: Shape, tokens: int, device: torch.device) -> Prepared:
    sizes = tokens, shape.num_experts_per_tok, shape.hidden_size
    answers = torch.randn(sizes, dtype=shape.dtype, device=device)
    weights = torch.rand(sizes[:2], device=device)
    ours, twin = (
        partial(one.combine, answers, weights) for one in (TritonProducts(), TorchProducts())
    )
    return Prepared(ours, combine_floor(answers), twin, {"torch sum": lambda: twin})


def _product(
    shape: Shape,
    form: Callable[[Tensor], Weight],
    sizes: tuple[int, int, int],
    device: torch.device,
) -> Prepared:
    """A grouped product; rows are already sorted, as a rival needs them."""
    tokens, outputs, inputs = sizes
    experts, count = shape.num_experts, tokens * shape.num_experts_per_tok
    given = torch.randn(count, inputs, dtype=shape.dtype, device=device)
    values = torch.randn(experts, outputs, inputs, dtype=shape.dtype, device=device)
    chosen, weight = chosen_at_random(shape, tokens), form(values)
    route = Route(TorchProducts().sort(chosen.to(device), experts)[1])
    used = len(chosen.unique())
    return Prepared(
        partial(TritonProducts().grouped, given, route, weight, None),
        product_floor(count, weight, used, shape.dtype.itemsize),
        partial(TorchProducts().grouped, given, route, weight, None),
        {"torch._grouped_mm whole": partial(_grouped, given, values, route.offsets)},
    )


def _grouped(given: Tensor, values: Tensor, offsets: Tensor) -> Run:
    ends = offsets[1:].contiguous()
    return partial(torch._grouped_mm, given, values.transpose(1, 2), offs=ends)


def chosen_at_random(shape: Shape, tokens: int) -> Tensor:
    """[tokens, top_k] random choices; on the host, which counts the experts used."""
    scores = torch.rand(tokens, shape.num_experts)
    return scores.topk(shape.num_experts_per_tok).indices
