"""How many experts a step uses: with random weights tokens choose alike, so it uses fewer."""

import statistics
from unittest.mock import patch

from torch import Tensor

from bench.engine.ours import OurEngine
from bench.gpu.row import Run
from engine.models.experts import Router
from engine.running.device import DeviceRunner


def used_experts(ours: OurEngine, run: Run) -> float | None:
    """Experts of a layer that `run` uses, on average; None if no layer has a router.

    Runs once, kernel by kernel: a graph does not tell what it chooses.
    """
    runner = ours.runner
    if not isinstance(runner, DeviceRunner) or runner.accelerator.products is None:
        return None
    counts, choose = list[int](), Router.choose

    def counted(self: Router, logits: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = choose(self, logits)
        counts.append(len(chosen.unique()))
        return weights, chosen

    graphs, pieces = runner.graphs, runner.pieces
    runner.graphs = runner.pieces = None
    try:
        with patch.object(Router, "choose", counted):
            run()
    finally:
        runner.graphs, runner.pieces = graphs, pieces
    return statistics.fmean(counts) if counts else None
