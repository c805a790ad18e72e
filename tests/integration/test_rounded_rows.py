"""Where products have weights of 8 bits, what leads to them rounds their rows on the way."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from engine.kernels.contract import DualOutputNorms, QuantizedOutputKernels
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.products import Route, TorchProducts
from engine.kernels.rows import Rows, already_quantized
from engine.kernels.weights import Fp8Weight, Weight
from engine.request import Sampling
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import load, prompt, requests, run
from tests.integration.test_packed import made

GREEDY = Sampling(max_tokens=4, temperature=0, ignore_eos=True)
PROMPTS = [prompt(5), prompt(17)]
FP8: dict[str, Any] = {"quantization": "fp8"}


@dataclass(frozen=True)
class Listening(TorchProducts):
    """Notes of each product with a weight of 8 bits whether its rows came rounded."""

    heard: list[tuple[str, bool]] = field(default_factory=list)

    def multiply(self, rows: Rows, weight: Weight, bias: Tensor | None = None) -> Tensor:
        self._hear("one", rows, weight)
        return super().multiply(rows, weight, bias)

    def grouped(self, rows: Rows, route: Route, weight: Weight, bias: Tensor | None) -> Tensor:
        self._hear("many", rows, weight)
        return super().grouped(rows, route, weight, bias)

    def _hear(self, name: str, rows: Rows, weight: Weight) -> None:
        if isinstance(weight, Fp8Weight):
            rounded = already_quantized(rows, weight.row_group) is not None
            self.heard.append((name, rounded))


# of each layer, in order: whether its rows were rounded before
DENSE = [("one", True), ("one", False), ("one", True), ("one", True)]
SPARSE = [("one", True), ("one", False), ("many", True), ("many", True)]
LATENT = [("one", True), ("one", True), ("one", False)]  # queries through a latent
SHARED = [*SPARSE[2:], ("one", True), ("one", True)]
EACH = {
    "llama": [*DENSE, *DENSE],
    "olmo2": [("one", False), ("one", False), ("one", False), ("one", True)] * 2,
    "gemma2": [*DENSE, *DENSE],
    "gemma4_text": [("one", False), *[*DENSE, ("one", False), ("one", False)] * 6],
    "gemma4": [*DENSE, *SPARSE[2:]] * 4,
    "qwen3_moe": [*SPARSE, *SPARSE],
    "gpt_oss": [*SPARSE, *SPARSE],
    "deepseek_v3": [*LATENT, *DENSE[2:], *LATENT, *SHARED],
    "glm4_moe": [*DENSE, *DENSE[:2], *SHARED],
    "minimax_m2": [*SPARSE, *SPARSE],
    "bamba": DENSE * 4,
    "lfm2": DENSE * 4,
    "lfm2_moe": [*DENSE, *[*DENSE[:2], *SPARSE[2:]] * 3],
    "granitemoehybrid": [*DENSE[:2], *SHARED] * 4,
    "falcon_h1": [*DENSE[:2], *DENSE] * 3,
}


@pytest.mark.parametrize("family", EACH)
def test_norms_and_gates_round_for_the_products_that_they_lead_to(
    family: str, tmp_path: Path
) -> None:
    """What a router reads as well comes both ways; behind attention or no norm it is whole."""
    folder = make_checkpoint(tmp_path, family)
    products = Listening()
    engine = on_device(folder, FakeAccelerator(products=products), enforce_eager=True, **FP8)
    products.heard.clear()
    asked = requests(PROMPTS, replace(GREEDY, max_tokens=1))
    said = run(engine, asked)
    assert products.heard == [*EACH[family], ("one", False)]  # the head
    assert said == run(load(folder, cpu_kernels="torch", **FP8), asked)


@pytest.mark.parametrize("layout", ["fp8", "float-quantized"])
def test_scales_of_blocks_and_of_rows_say_what_they_say_without(
    layout: str, tmp_path: Path
) -> None:
    folder, _ = made(tmp_path, "llama", layout)
    products, asked = Listening(), requests(PROMPTS, GREEDY)
    ours = run(on_device(folder, FakeAccelerator(products=products)), asked)
    assert any(rounded for _, rounded in products.heard)
    assert ours == run(load(folder, cpu_kernels="torch"), asked)


def test_whole_weights_and_weights_of_four_bits_want_whole_rows(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama")
    asked = requests(PROMPTS, replace(GREEDY, max_tokens=1))

    class Refusing(TorchKernels):
        def quantized(self, group: int | None) -> QuantizedOutputKernels:
            raise AssertionError(f"nobody wants rows in groups of {group}")

        def dual(self, group: int | None) -> DualOutputNorms:
            raise AssertionError(f"nobody wants rows both ways, in groups of {group}")

    for quantization in (None, "int4"):
        accelerator = FakeAccelerator(Refusing(), products=TorchProducts())
        engine = on_device(folder, accelerator, quantization=quantization)
        assert len(run(engine, asked)) == len(asked)
    with pytest.raises(AssertionError, match="groups of None"), torch.inference_mode():
        on_device(folder, FakeAccelerator(Refusing(), products=TorchProducts()), **FP8)
