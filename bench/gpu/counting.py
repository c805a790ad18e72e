"""How many experts a step uses: with random weights tokens choose alike, so it uses fewer."""

import statistics
from unittest.mock import patch

from torch import Tensor

from bench.engine.ours import OurEngine
from bench.gpu.row import Run
from engine.kernels.products import Products
from engine.running.device import DeviceRunner


def used_experts(ours: OurEngine, run: Run) -> float | None:
    """Experts of a layer that `run` uses, on average; None if no layer sorts tokens by expert.

    Runs once, kernel by kernel: a graph does not tell what it sorts.
    """
    runner = ours.runner
    if not isinstance(runner, DeviceRunner) or runner.accelerator.products is None:
        return None
    products, counts = type(runner.accelerator.products), list[int]()
    sort = products.sort

    def counted(self: Products, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
        counts.append(len(chosen.unique()))
        return sort(self, chosen, experts)

    graphs, pieces = runner.graphs, runner.pieces
    runner.graphs = runner.pieces = None
    try:
        with patch.object(products, "sort", counted):
            run()
    finally:
        runner.graphs, runner.pieces = graphs, pieces
    return statistics.fmean(counts) if counts else None
