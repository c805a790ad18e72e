"""Decode steps are launched before the tokens of the step before them are read.

While a step runs, the host reads the one before, books it, tells its tokens, takes in what
came, and has the scheduler choose: the device need not wait for any of that, for its next
step is in line behind the one that runs, and takes its tokens from where that one leaves them.
What was begun is a guess at what the scheduler will choose. It is right but for sequences that
have ended, whose rows are not looked at, and for those that have come, who join one step later.

    device   |  step 7      |  step 8      |  step 9
    host        launch 8, read 7, book 7, choose 8, launch 9, read 8, ...

Where a row has a mask, a bias or a grammar, what may be drawn follows from the token before, so
from what the host has yet to read. Then a step is launched as far as its logits, and the draw
follows when the scheduler has chosen it: the device need not wait where the host is done with
all that before the logits are there.

    device   | logits 7 | draw 7 | logits 8          | draw 8 | logits 9
    host       launch draw 7 and logits 8, read 7, book 7, choose 8, masks of 8,
               launch draw 8 and logits 9, read 8, ...

The same holds for a row whose answer has not yet its `min_tokens`, and only for so long.

A row that nobody asks for has written one token's KV behind the end of its sequence, to a
block that was the sequence's when it was launched. Who gets the block next in this engine
writes to it in the device's order, so later; before others may write to blocks, `settle`.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.api import StepResult
from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.running.runner import Drawer, Ran, Sent
from engine.sampling.logits_processor import below_min_tokens, restricts_tokens
from engine.scheduling.scheduler import SampledTokens
from engine.stepping.draws import Asked
from engine.stepping.rows import Chosen, Row, chosen_of, is_foreseeable, next_rows
from engine.stepping.stepper import PlainStepper, Stepper


class Begun(NamedTuple):
    """A step that was launched, and what is asked of it; None: its draw is still to come."""

    rows: Seq[Row]
    ran: Ran
    asked: Asked | None


@dataclass(slots=True)
class AheadStepper:
    """See Stepper. Batches with anything but single next tokens go the plain way."""

    plain: PlainStepper
    drawer: Drawer
    begun: Begun | None = None
    _keep: Callable[[], None] = lambda: None

    @torch.inference_mode()
    def step(self) -> StepResult:
        """Launch what is left of this step, and the next one, then read this one."""
        scheduler, begun, self.begun = self.plain.scheduler, self.begun, None
        batch = scheduler.batch
        chosen, others = chosen_of(() if begun is None else begun.rows, batch)
        if begun is None or not chosen:
            if scheduler.drafter is not None or not all(map(is_foreseeable, batch)):
                return self.plain.step()
            begun = self._launch([Row.of(chunk) for chunk in batch])
            chosen, others = chosen_of(begun.rows, batch)
        asked, sent = self._drawn(begun, chosen)
        if all(map(is_foreseeable, others)):
            rows = next_rows(scheduler, chosen, others)
            self._keep()  # what the blocks held that rows were given just now
            self.begun = self._launch(rows) if rows else None
        scheduler.keep_in_batch([chunk for chunk, _ in chosen])
        tokens, logprobs = asked.read(sent)
        return scheduler.commit(
            {
                chunk.seq.request_id: SampledTokens(
                    [tokens[row]], [logprobs[row]] if row in logprobs else ()
                )
                for chunk, row in chosen
            }
        )

    def settle(self) -> None:
        """Wait for what was begun; its tokens are as good as before."""
        if self.begun is not None:
            self.drawer.wait()

    def put_below(self, keep: Callable[[], None]) -> None:
        """See Stepper: a row may be given a block that nobody has chosen yet."""
        self._keep = keep

    def _launch(self, rows: Seq[Row]) -> Begun:
        """All of a step, or as far as its logits."""
        asked, asking = None, [(row.seq, row.seq.request.sampling) for row in rows]
        if not any(
            restricts_tokens(one) or (one.min_tokens and below_min_tokens(seq))
            for seq, one in asking
        ):
            asked = Asked.of(self.plain.sampler, rows, range(len(rows)))
        plan = Plan(
            [row.token for row in rows],
            [Span(row.start, 1, row.blocks) for row in rows],
            (),
            range(len(rows)),
            None if asked is None else asked.drawing,
            [-1 if row.source is None else row.source for row in rows],
        )
        return Begun(rows, self.plain.runner.run(plan), asked)

    def _drawn(self, begun: Begun, chosen: Seq[Chosen]) -> tuple[Asked, Sent]:
        """A step's tokens are on their way now, if they were not."""
        rows, ran, asked = begun
        if asked is not None:
            assert ran.sent is not None, "a runner that draws"
            return asked, ran.sent
        assert ran.logits is not None, "each row is picked"
        asked = Asked.of(self.plain.sampler, rows, [row for _, row in chosen])
        return asked, self.drawer.draw(ran.logits, asked.drawing)


def stepper_for(plain: PlainStepper) -> Stepper:
    """Ahead where tokens are drawn on the device, and go into the next step from there."""
    drawer = plain.runner.drawer
    return plain if drawer is None else AheadStepper(plain, drawer)
