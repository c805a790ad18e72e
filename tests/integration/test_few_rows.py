"""Steps of few rows, whose products make what stands around them, say what other steps say."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels.fusion import (
    NO_FUSION,
    Choice,
    ExpertWeights,
    FewRowProducts,
    Fusion,
    RowNorm,
)
from engine.kernels.gpu.few_row_experts import mix_few_rows_twin
from engine.kernels.gpu.few_rows import few_row_scores_twin, few_rows_twin
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.products import Products, TorchProducts
from engine.kernels.weights import Fp8Weight
from engine.models.decoder import Decoder
from engine.models.few_rows import FewRowsGatedMlp, FewRowsLinear
from engine.request import Sampling
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import load, prompt, requests, run
from tests.fakes.packed import pack

GREEDY = Sampling(max_tokens=12, temperature=0, ignore_eos=True)
PROMPTS = [prompt(length) for length in (1, 3, 7, 18, 40)]
PRODUCTS_OF_A_LAYER, LAYERS = 4, 2
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "smollm3", "gemma", "glm"]
PACKED: dict[str, object] = {"cpu_kernels": "torch", "enforce_eager": True}
FP8 = PACKED | {"quantization": "fp8"}
WIDE: dict[str, Any] = {"hidden_size": 160, "intermediate_size": 288, "head_dim": 40}
OTHERS = ["gemma2", "olmo2"]
# without experts: the one family whose heads are normed and turn in part
NORMED_AND_PARTLY_TURNED: dict[str, dict[str, Any]] = {
    "glm4_moe": {"first_k_dense_replace": LAYERS}
}


@dataclass
class Watched(TorchKernels):
    """Few rows are `most_rows`, with weights in fp8 `most_fp8_rows`; what was fused with each
    product and with each mixture of experts, and how many rows it had; and with scores.
    """

    most_rows: int
    most_fp8_rows: int = 0
    seen: list[tuple[Fusion, int]] = field(default_factory=list)
    mixed: list[tuple[Fusion, int]] = field(default_factory=list)
    scored: list[RowNorm | None] = field(default_factory=list)
    formats: set[type] = field(default_factory=set)

    @property
    def few_row_products(self) -> FewRowProducts | None:
        return FewRowProducts(
            self._multiply, self._score, self._mix, self.most_rows, self.most_fp8_rows
        )

    def _multiply(
        self,
        rows: Tensor,
        weight: Tensor | Fp8Weight,
        bias: Tensor | None = None,
        fusion: Fusion = NO_FUSION,
    ) -> Tensor:
        self.seen.append((fusion, len(rows)))
        self.formats.add(type(weight))
        return few_rows_twin(rows, weight, bias, fusion)

    def _score(
        self, rows: Tensor, weight: Tensor, bias: Tensor | None, norm: RowNorm | None
    ) -> Tensor:
        self.scored.append(norm)
        return few_row_scores_twin(rows, weight, bias, norm)

    def _mix(
        self,
        rows: Tensor,
        choice: Choice,
        gate_up: ExpertWeights,
        down: ExpertWeights,
        fusion: Fusion,
    ) -> Tensor:
        self.mixed.append((fusion, len(rows)))
        return mix_few_rows_twin(rows, choice, gate_up, down, fusion)


def watched(
    folder: Path, most_rows: int, products: Products | None = None, **settings: object
) -> Watched:
    """What an engine says is as a CPU's; its experts are stacked."""
    kernels, asked = Watched(most_rows), requests(PROMPTS, GREEDY)
    expected = [run(load(folder), [one])[0] for one in asked]
    for seats in (1, 3, 5):
        accelerator = FakeAccelerator(kernels, products=products or TorchProducts())
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
    """With norms behind their parts."""
    kernels = watched(make_checkpoint(tmp_path, family), 2, enforce_eager=True)
    assert kernels.seen == kernels.mixed == []


def test_graphs_of_few_sequences_have_them(tmp_path: Path) -> None:
    kernels = watched(make_checkpoint(tmp_path), 4)
    assert {rows for _, rows in kernels.seen} >= {1, 2, 4}


def test_weights_in_fp8_have_their_own_number_of_rows(tmp_path: Path) -> None:
    """Tokens are those of separate launches."""
    folder, asked = make_checkpoint(tmp_path, "qwen2"), requests(PROMPTS, GREEDY)
    for seats in (1, 3, 5):
        kernels, apart = Watched(4, 2), Watched(4, 0)
        engines = (
            on_device(folder, FakeAccelerator(each), max_num_seqs=seats, **FP8)
            for each in (kernels, apart)
        )
        fused, separate = (run(engine, asked) for engine in engines)
        assert fused == separate
        assert {rows for _, rows in kernels.seen} == {1, 2}
        assert len(kernels.seen) % (LAYERS * PRODUCTS_OF_A_LAYER) == 0
        assert kernels.formats == {Fp8Weight}
        assert apart.seen == []
        inward, outward, gate_up, down = (fusion for fusion, _ in kernels.seen[:4])
        assert inward.norm
        assert gate_up.norm
        assert gate_up.gate
        assert outward.residual
        assert down.residual


@pytest.mark.parametrize("name", ["fp8", "fbgemm_fp8"])
def test_checkpoints_in_fp8_take_the_path(name: str, tmp_path: Path) -> None:
    """With scales of blocks, and of outputs."""
    packed = tmp_path / "packed"
    pack(make_checkpoint(tmp_path / "whole", "llama", **WIDE), packed, name)
    kernels, apart = Watched(4, 2), Watched(4, 0)
    fused, separate = (
        run(on_device(packed, FakeAccelerator(each), **PACKED), requests(PROMPTS[:2], GREEDY))
        for each in (kernels, apart)
    )
    assert fused == separate
    assert {rows for _, rows in kernels.seen} == {1, 2}
    assert kernels.formats == {Fp8Weight}


def test_a_layer_may_have_weights_of_both_formats(tmp_path: Path) -> None:
    """Then the smaller number of rows is few."""
    engine = on_device(make_checkpoint(tmp_path), FakeAccelerator(Watched(4, 2)), **FP8)
    assert isinstance(engine.decoder, Decoder)
    fused = engine.decoder.layers[0].few_mlp
    assert isinstance(fused, FewRowsGatedMlp)
    down = fused.down._replace(weight=torch.empty(1))
    assert [replace(fused, down=down).takes(rows) for rows in (1, 2, 3)] == [True, True, False]
    plain = FewRowsLinear(torch.empty(1), None)
    alone = replace(fused, gate_up=plain, down=plain)
    assert [alone.takes(rows) for rows in (4, 5)] == [True, False]


def test_weights_in_int4_have_none(tmp_path: Path) -> None:
    kernels = Watched(4, 2)
    settings = {"quantization": "int4", "cpu_kernels": "torch"}
    engine = on_device(make_checkpoint(tmp_path), FakeAccelerator(kernels), **settings)
    run(engine, requests(PROMPTS, GREEDY))
    assert kernels.seen == []


def test_graphs_of_few_sequences_have_fp8_products(tmp_path: Path) -> None:
    kernels = Watched(4, 2)
    settings = FP8 | {"enforce_eager": False}
    engine = on_device(make_checkpoint(tmp_path), FakeAccelerator(kernels), **settings)
    run(engine, requests(PROMPTS, GREEDY))
    assert {rows for _, rows in kernels.seen} == {1, 2}
