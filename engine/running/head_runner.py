"""Runs a draft head behind the forward passes of its model."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.plan import Plan
from engine.models.draft_head import DraftHead, LayerInputs
from engine.running.runner import ForwardOutput, Runner
from engine.running.warming import row_counts


class HeadRunner(Protocol):
    """Runs passes of a draft head, each over hidden states of a pass before it."""

    @property
    def draws(self) -> bool:
        """Whether it draws tokens as a plan's `sampling` says."""

    def run(self, plan: Plan, rows: Seq[range], hidden: Tensor | None) -> ForwardOutput:
        """Launch one pass. Its tokens are those behind the states in these `rows` of `hidden`,
        the output of the model's last pass; None: of the head's own last pass.
        """


@dataclass(slots=True)
class OwnHeadRunner:
    """See HeadRunner. `runner` runs the head as it would any model.

    A head that reads `inputs` of the model's layers reads no other output of the model.
    """

    head: DraftHead
    runner: Runner
    inputs: LayerInputs | None = None
    _last: Tensor | None = None

    @torch.inference_mode()
    def warm(self) -> None:
        """Take in as many states as a batch may have: each kind of kernel is compiled then."""
        if self.inputs is not None:
            for count in row_counts(len(self.inputs.rows)):
                self.head.take_in(self.inputs.rows[:count], own=False)

    @property
    def draws(self) -> bool:
        """See HeadRunner."""
        return self.runner.device_sampler is not None

    def run(self, plan: Plan, rows: Seq[range], hidden: Tensor | None) -> ForwardOutput:
        """See HeadRunner."""
        own = hidden is None
        source = self._last if own else hidden if self.inputs is None else self.inputs.rows
        assert source is not None, "the first pass is behind one of the model"
        parts = [source[one.start : one.stop] for one in merged(rows)]
        self.head.take_in(parts[0] if len(parts) == 1 else torch.cat(parts), own=own)
        ran = self.runner.run(plan)
        self._last = ran.hidden
        return ran


def merged(rows: Iterable[range]) -> list[range]:
    """The same rows in fewer ranges: one, if nothing is left out."""
    merged = list[range]()
    for one in rows:
        if merged and merged[-1].stop == one.start:
            merged[-1] = range(merged[-1].start, one.stop)
        else:
            merged.append(one)
    return merged
