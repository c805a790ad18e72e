"""Steps of few rows, whose products make what stands around them, say what other steps say."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from engine.kernels.contract import NO_FUSION, FewRowProducts, Fusion
from engine.kernels.gpu.few_rows import few_rows_twin
from engine.kernels.gpu.twins import TorchKernels
from engine.request import Sampling
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import load, prompt, requests, run

GREEDY = Sampling(max_tokens=12, temperature=0, ignore_eos=True)
PROMPTS = [prompt(length) for length in (1, 3, 7, 18, 40)]
PRODUCTS_OF_A_LAYER, LAYERS = 4, 2
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "smollm3", "gemma", "glm"]
OTHERS = ["gemma2", "olmo2", "mixtral", "gpt_oss", "deepseek_v3", "minimax_m2"]
# without experts: the one family whose heads are normed and turn in part
NORMED_AND_PARTLY_TURNED: dict[str, dict[str, Any]] = {
    "glm4_moe": {"first_k_dense_replace": LAYERS}
}


@dataclass
class Watched(TorchKernels):
    """As `most_rows` has it; what was around each product, and how many rows it had."""

    most_rows: int
    seen: list[tuple[Fusion, int]] = field(default_factory=list)

    @property
    def few_row_products(self) -> FewRowProducts | None:
        return FewRowProducts(self._multiply, self.most_rows)

    def _multiply(
        self,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        fusion: Fusion = NO_FUSION,
    ) -> Tensor:
        self.seen.append((fusion, len(rows)))
        return few_rows_twin(rows, weight, bias, fusion)


def watched(folder: Path, most_rows: int, **settings: object) -> Watched:
    """What an engine said is as a CPU's."""
    kernels, asked = Watched(most_rows), requests(PROMPTS, GREEDY)
    expected = [run(load(folder), [one])[0] for one in asked]
    for seats in (1, 3, 5):
        accelerator = FakeAccelerator(kernels)
        engine = on_device(folder, accelerator, max_num_seqs=seats, **settings)
        assert run(engine, asked) == expected
    return kernels


@pytest.mark.parametrize("family", [*FAMILIES, *NORMED_AND_PARTLY_TURNED])
def test_what_stands_around_products_is_made_by_them(family: str, tmp_path: Path) -> None:
    shape = NORMED_AND_PARTLY_TURNED.get(family, {})
    kernels = watched(make_checkpoint(tmp_path, family, **shape), 2, enforce_eager=True)
    assert {rows for _, rows in kernels.seen} == {1, 2}
    assert len(kernels.seen) % (LAYERS * PRODUCTS_OF_A_LAYER) == 0
    layer = kernels.seen[:PRODUCTS_OF_A_LAYER]
    inward, outward, gate_up, down = (fusion for fusion, _ in layer)
    assert inward.norm
    assert inward._replace(norm=None) == NO_FUSION
    assert gate_up.norm
    assert gate_up.gate
    for one in (outward, down):
        assert one.residual
        assert one._replace(residual=None) == NO_FUSION


@pytest.mark.parametrize("family", OTHERS)
def test_other_layers_are_as_they_were(family: str, tmp_path: Path) -> None:
    """With norms behind their parts, with experts, with latents."""
    kernels = watched(make_checkpoint(tmp_path, family), 2, enforce_eager=True)
    assert kernels.seen == []


def test_what_experts_made_before_is_added_first(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "qwen3_moe", mlp_only_layers=[1])
    kernels = watched(folder, 2, enforce_eager=True)
    assert kernels.seen[0][0].norm
    assert len(kernels.seen) % PRODUCTS_OF_A_LAYER == 0


def test_graphs_of_few_sequences_have_them(tmp_path: Path) -> None:
    kernels = watched(make_checkpoint(tmp_path), 4)
    assert {rows for _, rows in kernels.seen} >= {1, 2, 4}


def test_rounded_weights_have_none(tmp_path: Path) -> None:
    kernels = Watched(4)
    settings = {"quantization": "fp8", "cpu_kernels": "torch"}
    engine = on_device(make_checkpoint(tmp_path), FakeAccelerator(kernels), **settings)
    run(engine, requests(PROMPTS, GREEDY))
    assert kernels.seen == []
