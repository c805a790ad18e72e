"""Whole steps of transformers' continuous batching over a model of the same shape.

Behind ours, which have let go of the device's memory by then. They measure themselves: by
their own stamps of tokens, with the prompt's arrival by the same clock.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import torch

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from bench.gpu.work import prompt_floor, step_floor
from engine.kernels.floor import Floor

if TYPE_CHECKING:
    from bench.engine.theirs import Theirs

STEPS, PROMPTS = 20, 3
Measure = Callable[["Theirs"], float]


def rows(shape: Shape) -> Iterator[Row]:
    """With whole weights only."""
    if shape.quantization is not None:
        return
    context, prompt = shape.context, shape.prefill
    for batch in shape.batches:
        measure: Measure = partial(_step_s, batch, context)
        room = batch, context + STEPS + batch
        make = partial(_make, shape, room, measure, step_floor(shape, batch))
        yield Row("transformers decode step", f"batch {batch}, context {context}", make)
    make = partial(
        _make, shape, (1, prompt + 1), _prompt_s(prompt), prompt_floor(shape, prompt)
    )
    yield Row("transformers prefill", f"{prompt} tokens", make)


def _step_s(batch: int, context: int, theirs: "Theirs") -> float:
    return theirs.step_s(batch, context, STEPS)


def _prompt_s(tokens: int) -> Measure:
    return lambda theirs: theirs.prompt_s(tokens, PROMPTS)


def _make(
    shape: Shape, room: tuple[int, int], measure: Measure, floor: Floor, device: torch.device
) -> Prepared:
    """`room` is for so many sequences of so many tokens."""
    from bench.engine.theirs import Theirs, random_model  # more than torch and triton

    stack = ExitStack()
    model = random_model(shape.config, shape.dtype, device)
    theirs = stack.enter_context(Theirs.over(model, *room, most=shape.prefill))
    return Prepared(partial(measure, theirs), floor, measures=True, close=stack.close)
