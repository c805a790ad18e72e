"""Whole steps of transformers' continuous batching over a model of the same shape.

They run in a separate process and measure themselves, by transformers' own timestamps of tokens
and of the prompt's arrival. In fp8 the linear layers are torch._scaled_mm's, because
transformers' own fp8 downloads its kernels from a hub at run time.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from bench.gpu.work import prompt_floor, step_floor
from engine.kernels.floor import Floor

if TYPE_CHECKING:
    from bench.engine.theirs import TransformersEngine

STEPS, PROMPTS = 20, 3
Measure = Callable[["TransformersEngine"], float]


@dataclass(slots=True)
class _Model:
    """One model for all rows of a shape, made by the first."""

    shape: Shape
    _made: Any = field(default=None)

    def on(self, device: torch.device) -> Any:  # noqa: ANN401  theirs
        from bench.engine.theirs import random_model  # more than torch and triton

        if self._made is None:
            self._made = random_model(self.shape.config, self.shape.dtype, device)
            if self.shape.quantization == "fp8":
                from bench.gpu.scaled_linears import scale_linears

                scale_linears(self._made, device)
        return self._made


def rows(shape: Shape) -> Iterator[Row]:
    """Decode steps by batch, and a prompt."""
    by = "" if shape.quantization is None else ", linears by torch._scaled_mm"
    context, prompt, model = shape.context, shape.prefill, _Model(shape)
    for batch in shape.batches:
        measure: Measure = partial(_step_s, batch, context)
        room = batch, context + STEPS + batch
        make = partial(_make, model, room, measure, step_floor(shape, batch))
        yield Row("transformers decode step", f"batch {batch}, context {context}{by}", make)
    make = partial(
        _make, model, (1, prompt + 1), _prompt_s(prompt), prompt_floor(shape, prompt)
    )
    yield Row("transformers prefill", f"{prompt} tokens{by}", make)


def _step_s(batch: int, context: int, theirs: "TransformersEngine") -> float:
    return theirs.step_s(batch, context, STEPS)


def _prompt_s(tokens: int) -> Measure:
    return lambda theirs: theirs.prompt_s(tokens, PROMPTS)


def _make(
    model: _Model, room: tuple[int, int], measure: Measure, floor: Floor, device: torch.device
) -> Prepared:
    """Prepare a row; `room` is the sequences, and the tokens of each."""
    from bench.engine.theirs import TransformersEngine  # more than torch and triton

    stack = ExitStack()
    theirs = stack.enter_context(
        TransformersEngine.over(model.on(device), *room, most=model.shape.prefill)
    )
    return Prepared(partial(measure, theirs), floor, measures=True, close=stack.close)
