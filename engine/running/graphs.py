"""Decode steps as CUDA graphs: which batch sizes have one, and the graphs themselves.

A decode step of a few sequences is a thousand small launches: issued one by one, they take the
host longer than the device. Captured once, they are launched as one. A graph has fixed shapes
and addresses, so some batch sizes have one each; a smaller batch is padded up to the next.

Only steps of one token for each sequence are captured whole. Small steps with a chunk of a
prompt are captured in pieces: engine/running/piecewise.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from engine.running.recorder import Recorder, Replay
from engine.running.runner import ForwardOutput
from engine.running.warming import with_progress

SMALL_SIZES = (1, 2, 4)
SIZE_STEP = 8

Step: TypeAlias = Callable[[], ForwardOutput]


def graph_sizes(most: int) -> list[int]:
    """1, 2, 4, then multiples of 8, and `most` itself; ascending."""
    sizes = {size for size in SMALL_SIZES if size < most}
    return sorted(sizes | {*range(SIZE_STEP, most, SIZE_STEP), most})


def fitting_size(sizes: Sequence[int], singles: int, chunks: int) -> int | None:
    """The smallest size with room for a batch; None: it is not replayed as one graph.

    A sequence with drafts is a chunk, so its batch is not. Sampling, grammars and pooling make
    no difference, because they come after the graph.
    """
    if chunks or not singles:
        return None
    return next((size for size in sizes if size >= singles), None)


@dataclass(slots=True)
class Graphs:
    """One graph for each size; all write to `outputs`, which has rows for the largest."""

    outputs: ForwardOutput
    _replays: dict[int, Replay] = field(default_factory=dict)

    @property
    def sizes(self) -> Sequence[int]:
        """The captured sizes, ascending."""
        return sorted(self._replays)

    def capture(
        self, recorder: Recorder, sizes: Sequence[int], step_of: Callable[[int], Step]
    ) -> None:
        """Capture `step_of(size)` for each size, the largest first: others reuse its memory."""
        order = sorted(sizes, reverse=True)
        for size in with_progress(order, "capturing graphs"):
            self._replays[size] = recorder.record(
                partial(_keep, _first_rows(self.outputs, size), step_of(size))
            )

    def replay(self, size: int, used: int) -> ForwardOutput:
        """Replay one graph; the outputs of its first `used` rows."""
        self._replays[size]()
        return _first_rows(self.outputs, used)


def _keep(outputs: ForwardOutput, step: Step) -> None:
    made = step()
    assert outputs.logits is not None
    assert made.logits is not None
    outputs.hidden.copy_(made.hidden)
    outputs.logits.copy_(made.logits)


def _first_rows(ran: ForwardOutput, count: int) -> ForwardOutput:
    assert ran.logits is not None
    return ForwardOutput(ran.hidden[:count], ran.logits[:count])
