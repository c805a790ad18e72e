"""Decode steps are launched before the tokens of the step before them are read.

While a step runs, the host reads the one before, books it, tells its tokens, takes in what
came, and has the scheduler choose: the device need not wait for any of that, for its next
step is in line behind the one that runs, and takes its tokens from where that one leaves them.
What was begun is a guess at what the scheduler will choose. It is right but for sequences that
have ended, whose rows are not looked at, and for those that have come, who join one step later.

    device   |  step 7      |  step 8      |  step 9
    host        launch 8, read 7, book 7, choose 8, launch 9, read 8, ...

A row that nobody asks for has written one token's KV behind the end of its sequence, to a
block that was the sequence's when it was launched. Who gets the block next in this engine
writes to it in the device's order, so later; before others may write to blocks, `settle`.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.api import StepResult
from engine.attention.paged import Span
from engine.attention.plan import Ask, DrawNumbers, Plan
from engine.kernels.telling import told_into
from engine.request import LARGEST_TEMPERATURE, Logprobs
from engine.running.runner import Brought
from engine.sampling.hearing import heard
from engine.sampling.noise import noise_key
from engine.sampling.sampler import SMALLEST_TEMPERATURE
from engine.scheduling.scheduler import Drawn
from engine.stepping.rows import Chosen, Row, chosen_of, is_foreseeable, next_rows
from engine.stepping.stepper import PlainStepper, Stepper


class Begun(NamedTuple):
    """A step that was launched, and its tokens, which are on their way."""

    rows: Seq[Row]
    asks: Seq[Ask]
    drawn: Brought
    told: Brought | None

    def read(self) -> tuple[list[int], dict[int, Logprobs]]:
        """A token for each row, and what the asking rows are told; waits for the device."""
        tokens = self.drawn.read()
        if self.told is None:
            return tokens, {}
        most = [ask.most for ask in self.asks]
        numbers = torch.tensor(self.told.read(), dtype=torch.int32)
        told = heard(
            told_into(numbers, len(most), max(most)),
            [tokens[ask.row] for ask in self.asks],
            most,
        )
        return tokens, dict(zip((ask.row for ask in self.asks), told, strict=True))


@dataclass(slots=True)
class AheadStepper:
    """See Stepper. Batches with anything but plain next tokens go the plain way."""

    plain: PlainStepper
    begun: Begun | None = None

    @torch.inference_mode()
    def step(self) -> StepResult:
        """Launch the next step, then read this one."""
        scheduler, begun, self.begun = self.plain.scheduler, self.begun, None
        batch = scheduler.batch
        chosen = [] if begun is None else chosen_of(begun.rows, batch)
        if begun is None or not chosen:
            if scheduler.drafter is not None or not all(map(is_foreseeable, batch)):
                return self.plain.step()
            begun = self._launch([Row.of(chunk) for chunk in batch])
            chosen = [Chosen(chunk, row) for row, chunk in enumerate(batch)]
        ours = {id(chunk) for chunk, _ in chosen}
        others = [chunk for chunk in batch if id(chunk) not in ours]
        if all(map(is_foreseeable, others)):
            rows = next_rows(scheduler, chosen, others)
            self.begun = self._launch(rows) if rows else None
        scheduler.narrow([chunk for chunk, _ in chosen])
        tokens, logprobs = begun.read()
        return scheduler.commit(
            {
                chunk.seq.request_id: Drawn(
                    [tokens[row]], [logprobs[row]] if row in logprobs else ()
                )
                for chunk, row in chosen
            }
        )

    def settle(self) -> None:
        """Wait for what was begun; its tokens are as good as before."""
        if self.begun is not None:
            self.begun.drawn.wait()

    def _launch(self, rows: Seq[Row]) -> Begun:
        asks = list(self._asks(rows))
        plan = Plan(
            [row.token for row in rows],
            [Span(row.start, 1, row.blocks) for row in rows],
            (),
            range(len(rows)),
            [_numbers(row) for row in rows],
            [-1 if row.source is None else row.source for row in rows],
            self.plain.sampler.penalties([row.seq for row in rows]),
            asks,
        )
        ran = self.plain.runner.run(plan)
        assert ran.drawn is not None, "a runner that draws"
        return Begun(rows, asks, ran.drawn, ran.told)

    def _asks(self, rows: Seq[Row]) -> Iterator[Ask]:
        vocabulary = self.plain.sampler.vocabulary
        for index, row in enumerate(rows):
            most = row.seq.request.sampling.logprobs
            if most is not None:
                yield Ask(index, min(most, vocabulary))


def stepper_for(plain: PlainStepper) -> Stepper:
    """Ahead where tokens are drawn on the device, and go into the next step from there."""
    return AheadStepper(plain) if plain.runner.draws else plain


def _numbers(row: Row) -> DrawNumbers:
    sampling = row.seq.request.sampling
    temperature = min(sampling.temperature, LARGEST_TEMPERATURE)
    if temperature <= SMALLEST_TEMPERATURE:
        return DrawNumbers(0.0, 0, 1.0, 0.0, (0, 0))
    key = noise_key(sampling.seed, sampling.sample_index, row.start + 1)
    return DrawNumbers(temperature, sampling.top_k, sampling.top_p, sampling.min_p, key)
