"""Whole steps of our engine: decode by batch, a long prompt, and short ones in two ways.

A step's tokens are on the host when it ends, and the next one may be launched by then, so a
step's time is from one end to the next. The part in which the device is idle is the host's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from bench.gpu.row import Prepared, Row, Run
from bench.gpu.shapes import Shape
from bench.gpu.work import prompt_floor, step_floor

if TYPE_CHECKING:
    from bench.engine.ours import OurEngine
    from bench.gpu.engines import Loaded


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of one engine, which is freed after the last."""
    from bench.gpu.engines import Loaded  # more than torch and triton

    loaded = Loaded(shape)
    for batch in _wanted_first(shape.batches):
        make = partial(decode, loaded, batch)
        yield Row("decode step", f"batch {batch}, context {shape.context}", make)
    yield Row("prefill", f"{shape.prefill} tokens", partial(prefill, loaded, shape.prefill))
    for tokens in shape.few:
        make = partial(prefill, loaded, tokens)
        yield Row("short prefill", f"{tokens} tokens", make)
        make = partial(_without_graphs, loaded, tokens)
        yield Row("short prefill without graphs", f"{tokens} tokens", make)


def _wanted_first(batches: Sequence[int]) -> Sequence[int]:
    """The smallest and the largest batch, which have targets; then those between."""
    return sorted(batches, key=lambda batch: min(batches) < batch < max(batches))


def decode(loaded: "Loaded", batch: int, device: torch.device) -> Prepared:
    """Decode steps of `batch` sequences, each with the shape's context and some more tokens."""
    from bench.gpu.engines import room_of

    ours, shape = loaded.on(device), loaded.shape
    names = ours.arrive(batch, shape.context, room_of(shape))
    step = partial(ours.step, batch)
    floor = step_floor(shape, batch, _experts(loaded, ours, step))
    return Prepared(step, floor, steps=True, close=partial(ours.end, names))


def prefill(loaded: "Loaded", tokens: int, device: torch.device) -> Prepared:
    """A prompt of so many tokens, in one piece."""
    ours = loaded.on(device)
    run = partial(ours.prompt, tokens)
    floor = prompt_floor(loaded.shape, tokens, _experts(loaded, ours, run))
    return Prepared(run, floor, steps=True)


def _experts(loaded: "Loaded", ours: "OurEngine", run: Run) -> float | None:
    """Experts of a layer that `run` uses; None for a dense model, for which nothing is run."""
    from bench.gpu.counting import used_experts

    return used_experts(ours, run) if loaded.shape.num_experts else None


def _without_graphs(loaded: "Loaded", tokens: int, device: torch.device) -> Prepared:
    """A prompt launched kernel by kernel, like larger batches."""
    from engine.running.device import DeviceRunner

    prepared, runner = prefill(loaded, tokens, device), loaded.on(device).runner
    if not isinstance(runner, DeviceRunner):
        return prepared  # a CPU's runner, which has no graphs
    pieces, runner.pieces = runner.pieces, None

    def put_back() -> None:
        runner.pieces = pieces

    return replace(prepared, close=put_back)
