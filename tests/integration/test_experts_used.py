"""The floor of a step of experts has the weights of those that its tokens choose."""

import pytest
import torch

from bench.engine.ours import OurEngine
from bench.gpu.engines import Loaded
from bench.gpu.rows.steps import decode
from bench.gpu.shapes import SHAPES
from bench.gpu.work import step_floor
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.products import TorchProducts
from engine.models.experts import Router
from engine.running.device import DeviceRunner
from tests.fakes.device import FakeAccelerator

CPU, BATCH = torch.device("cpu"), 3


class Sorting(TorchKernels):
    """Knows nothing of few rows, so that tokens are sorted by expert."""

    few_row_products = None


@pytest.mark.parametrize("kernels", [TorchKernels(), Sorting()])
@pytest.mark.parametrize("used", [1, 2])
def test_experts_are_counted(
    used: int, kernels: TorchKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens choose the same two experts, or the same one twice; a few are not sorted."""
    shape = SHAPES["tiny-experts"]
    loaded = Loaded(shape, FakeAccelerator(kernels, products=TorchProducts()))
    runner = loaded.on(CPU).runner
    assert isinstance(runner, DeviceRunner)
    before = runner.graphs, runner.pieces
    choose, whole = TorchProducts.choose, Router.choose

    def chosen(self: TorchProducts, *asked: object) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = choose(self, *asked)  # type: ignore[arg-type]
        return weights, ids.new_tensor([0, used - 1]).expand_as(ids)

    monkeypatch.setattr(TorchProducts, "choose", chosen)
    prepared = decode(loaded, BATCH, CPU)
    assert prepared.floor == step_floor(shape, BATCH, used)
    assert prepared.floor.bytes < step_floor(shape, BATCH).bytes
    assert (runner.graphs, runner.pieces) == before
    assert Router.choose is whole
    prepared.close()


def test_a_dense_model_has_none_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a step run for it."""
    steps = list[int]()
    monkeypatch.setattr(OurEngine, "step", lambda _, batch: steps.append(batch))
    shape = SHAPES["tiny"]
    loaded = Loaded(shape, FakeAccelerator(products=TorchProducts()))
    prepared = decode(loaded, BATCH, CPU)
    assert prepared.floor == step_floor(shape, BATCH)
    assert steps == []
    prepared.close()
