"""Steps of few rows through experts that are not sorted say what other steps say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels.products import Route, TorchProducts
from engine.kernels.rows import Rows
from engine.kernels.weights import Weight, quantized_inputs
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import requests, run
from tests.integration.test_few_rows import (
    GREEDY,
    LAYERS,
    PACKED,
    PRODUCTS_OF_A_LAYER,
    PROMPTS,
    Watched,
    watched,
)

GROUPED, LATENT = 2, 0  # an attention's products that can be fused
# products of one step, beside experts; their mixtures
FAMILIES = {
    "mixtral": (LAYERS * GROUPED, LAYERS),
    "qwen3_moe": (LAYERS * GROUPED, LAYERS),
    "olmoe": (LAYERS * GROUPED, LAYERS),
    "minimax_m2": (LAYERS * GROUPED, LAYERS),
    "gpt_oss": (LAYERS * GROUPED, LAYERS),
    "ernie4_5_moe": (PRODUCTS_OF_A_LAYER + GROUPED + 2, 1),
    "glm4_moe": (PRODUCTS_OF_A_LAYER + GROUPED + 2, 1),
    "deepseek_v3": (LATENT + 2 + LATENT + 2, 1),
    "deepseek_v2": (LATENT + 2 + LATENT + 2, 1),
    "qwen2_moe": (LAYERS * GROUPED, 0),  # the shared expert has a gate of its own
}


class CapturedProducts(TorchProducts):
    """Multiplies without a look at what the device has: every row by every expert."""

    def grouped(self, rows: Rows, route: Route, weight: Weight, bias: Tensor | None) -> Tensor:
        ours = quantized_inputs(rows, weight)
        if route.sources is not None:
            ours = ours[route.sources.long() // route.times]
        every = torch.stack([ours @ weight.whole(one).T for one in range(weight.shape[0])])
        at = torch.arange(len(ours))
        answers = every[torch.searchsorted(route.offsets[1:].long(), at, right=True), at]
        assert bias is None
        if route.targets is not None:
            answers = torch.empty_like(answers).index_copy_(0, route.targets.long(), answers)
        return answers


@pytest.mark.parametrize("family", FAMILIES)
def test_each_half_of_a_layer_is_fused_where_it_can_be(family: str, tmp_path: Path) -> None:
    """Among them a dense MLP behind attention over latents, and shared experts."""
    kernels = watched(make_checkpoint(tmp_path, family), 2, enforce_eager=True)
    products, mixtures = FAMILIES[family]
    steps = len(kernels.seen) // products
    assert len(kernels.seen) == steps * products
    assert len(kernels.mixed) == len(kernels.scored) == steps * mixtures
    assert {rows for _, rows in kernels.seen} == {1, 2}
    for fusion, _ in kernels.mixed:
        assert fusion.norm
        assert fusion.gate
        assert fusion.residual
        assert (fusion.gate.clamp is not None) == (family == "gpt_oss")
    assert all(kernels.scored)


@pytest.mark.parametrize("sparse", [0, 1])
def test_layers_with_experts_and_layers_without(sparse: int, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "qwen3_moe", mlp_only_layers=[1 - sparse])
    kernels = watched(folder, 2, enforce_eager=True)
    assert len(kernels.mixed) * (PRODUCTS_OF_A_LAYER + GROUPED) == len(kernels.seen)


def test_graphs_of_few_sequences_have_mixtures(tmp_path: Path) -> None:
    folder, products = make_checkpoint(tmp_path, "qwen3_moe"), CapturedProducts()
    kernels = watched(folder, 4, products)
    assert {rows for _, rows in kernels.mixed} >= {1, 2, 4}


@pytest.mark.parametrize("quantization", ["fp8", "int4"])
def test_experts_that_are_quantized_are_sorted(quantization: str, tmp_path: Path) -> None:
    """The other half may be fused all the same."""
    folder, kernels = make_checkpoint(tmp_path, "qwen3_moe"), Watched(4, 2)
    settings: dict[str, Any] = PACKED | {"quantization": quantization}
    asked = requests(PROMPTS, GREEDY)
    engines = (
        on_device(folder, FakeAccelerator(each, products=TorchProducts()), **settings)
        for each in (kernels, Watched(0))
    )
    fused, separate = (run(engine, asked) for engine in engines)
    assert fused == separate
    assert not kernels.mixed
    assert not kernels.scored
    assert bool(kernels.seen) == (quantization == "fp8")
