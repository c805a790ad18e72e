"""Async scheduling: a decode step is launched before the previous one's tokens are read.

While a step runs on the device, the host reads the tokens of the step before, records and
reports them, and schedules. The device never waits for that: its next step is queued behind
the running one, and takes its input tokens from where that one leaves them. A step launched
ahead is a guess at what the scheduler will choose. The guess is right except for sequences
that have finished, whose rows are ignored, and new ones, which join one step later.

    device   |  step 7      |  step 8      |  step 9
    host        launch 8, read 7, commit 7, schedule 8, launch 9, read 8, ...

If a row has a mask, a bias or a grammar, what may be drawn depends on the previous token,
which the host has not read yet. Then a step is launched only as far as its logits, and its
draw is launched once the scheduler has chosen the batch. The device waits only if the host has
not finished that when the logits are ready.

    device   | logits 7 | draw 7 | logits 8          | draw 8 | logits 9
    host       launch draw 7 and logits 8, read 7, commit 7, schedule 8, masks of 8,
               launch draw 8 and logits 9, read 8, ...

The same holds for a row whose answer has fewer than `min_tokens` tokens, until it has them.

A row whose sequence has finished writes one token's KV behind the sequence's end, to a block
that the sequence owned at the launch. The next sequence here that gets the block writes to it
later, in the device's stream order. The transfer thread is not part of that order: before it
may write to blocks that were freed since the launch, call `synchronize`. It may write to all
others at once, because blocks that were free at the launch are not in the step.

Nothing is launched ahead of a step that may have drafts. While drafts pause, because many
sequences decode or none of them drafts well, a draft head is launched behind each step, before
the next one:

    device   |  step 7  | head 7 |  step 8  | head 8 |  step 9
    host        launch head 7 and 8, read 7, wait for head 7, commit 7, schedule 8, ...
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.api import StepResult
from engine.attention.paged import Span
from engine.attention.plan import BlockCopies, Plan
from engine.request import RequestId
from engine.running.runner import DeviceSampler, ForwardOutput, PendingTokens
from engine.sampling.logits_processor import below_min_tokens, restricts_tokens
from engine.scheduling.chunk import Chunk, SampledTokens
from engine.stepping.head_drafter import HeadDrafter, RanChunk
from engine.stepping.pending_draw import PendingDraw
from engine.stepping.rows import (
    DecodeRow,
    ScheduledRow,
    can_launch_ahead,
    match_batch,
    next_rows,
)
from engine.stepping.stepper import PlainStepper, Stepper


class LaunchedStep(NamedTuple):
    """A step whose forward pass was launched; `draw` is None while its draw is not."""

    rows: Seq[DecodeRow]
    output: ForwardOutput
    draw: PendingDraw | None


@dataclass(slots=True)
class AheadStepper:
    """See Stepper. Chunks that cannot be launched ahead are run by `plain`."""

    plain: PlainStepper
    device_sampler: DeviceSampler
    launched: LaunchedStep | None = None
    _save_blocks: Callable[[], None] = lambda: None

    @torch.inference_mode()
    def step(self) -> StepResult:
        """Launch this step's draw and the next step, then read this step's tokens."""
        scheduler, launched, self.launched = self.plain.scheduler, self.launched, None
        scheduler.next_is_launched = False
        batch, pause = scheduler.batch, scheduler.drafts_pause
        scheduled, missed = match_batch(() if launched is None else launched.rows, batch)
        if launched is None or not scheduled:
            if not all(map(can_launch_ahead, batch)):
                return self.plain.step()
            launched = self._launch([DecodeRow.of(chunk) for chunk in batch])
            scheduled, missed = match_batch(launched.rows, batch)
        draw, pending = self._launch_draw(launched, scheduled)
        head, ran, done = self.plain.head, list[RanChunk](), None
        if head is not None:
            ran = [RanChunk(chunk, chunk.seq.blocks, row) for chunk, row in scheduled]
        if pause and all(map(can_launch_ahead, missed)):
            if head is not None:
                head.follow_unread(ran, launched.output.hidden)
                done = self.device_sampler.mark()
            self._launch_next(scheduled, missed)
        scheduler.keep_in_batch([chunk for chunk, _ in scheduled])
        result = scheduler.commit(_read(draw, pending, scheduled))
        if done is not None:
            done.read()  # other nodes read filled blocks, the head's KV too
        elif head is not None:
            head.follow(ran, launched.output.hidden)
        return result

    def synchronize(self, blocks: Iterable[int]) -> None:
        """Wait for the step launched ahead, if some of `blocks` may be in it."""
        if self.plain.scheduler.sequences.kv.pool.may_be_in_launched_step(blocks):
            self.finish()

    def finish(self) -> None:
        """Wait for the step launched ahead; it stays valid, and its tokens are read later."""
        if self.launched is not None:
            self.device_sampler.wait()

    def save_before_launch(self, save: Callable[[], None]) -> None:
        """See Stepper: launching ahead takes blocks that `schedule` has not given out."""
        self._save_blocks = save

    def run_behind(self, head: HeadDrafter) -> None:
        """See Stepper."""
        self.plain.run_behind(head)

    def _launch_next(self, scheduled: Seq[ScheduledRow], missed: Seq[Chunk]) -> None:
        """Launch the next step before the host has read this one's tokens."""
        rows = next_rows(self.plain.scheduler, scheduled, missed)
        self._save_blocks()  # copies the old contents of blocks just given to rows
        self.launched = self._launch(rows) if rows else None
        self.plain.scheduler.next_is_launched = self.launched is not None

    def _launch(self, rows: Seq[DecodeRow]) -> LaunchedStep:
        """Launch a whole step, or only as far as its logits if a row's draw must wait."""
        draw, samplings = None, [(row.seq, row.seq.request.sampling) for row in rows]
        draw_must_wait = any(
            restricts_tokens(one) or (one.min_tokens and below_min_tokens(seq))
            for seq, one in samplings
        )
        if not draw_must_wait:
            draw = PendingDraw.of(self.plain.sampler, rows, range(len(rows)))
        plan = Plan(
            [row.token for row in rows],
            [
                Span(row.start, 1, row.blocks, row.seq.adapter, row.seq.state_blocks)
                for row in rows
            ],
            (),
            range(len(rows)),
            None if draw is None else draw.sampling,
            [-1 if row.source is None else row.source for row in rows],
            self._copies_behind(rows),
        )
        launched = LaunchedStep(rows, self.plain.runner.run(plan), draw)
        self.plain.scheduler.sequences.kv.pool.note_launch()
        return launched

    def _copies_behind(self, rows: Seq[DecodeRow]) -> BlockCopies:
        """The copies of rows' states; looked for only where there are any states."""
        if not self.plain.scheduler.copies_states:
            return BlockCopies()
        return BlockCopies((), [copy for row in rows for copy in row.leaves])

    def _launch_draw(
        self, launched: LaunchedStep, scheduled: Seq[ScheduledRow]
    ) -> tuple[PendingDraw, PendingTokens]:
        """Launch the step's draw, unless it was launched with the forward pass."""
        rows, output, draw = launched
        if draw is not None:
            assert output.pending is not None, "a runner that draws"
            return draw, output.pending
        assert output.logits is not None, "each row is picked"
        draw = PendingDraw.of(self.plain.sampler, rows, [row for _, row in scheduled])
        return draw, self.device_sampler.draw(output.logits, draw.sampling)


def _read(
    draw: PendingDraw, pending: PendingTokens, scheduled: Iterable[ScheduledRow]
) -> dict[RequestId, SampledTokens]:
    tokens, logprobs = draw.read(pending)
    return {
        chunk.seq.request_id: SampledTokens(
            [tokens[row]], [logprobs[row]] if row in logprobs else ()
        )
        for chunk, row in scheduled
    }


def stepper_for(plain: PlainStepper) -> Stepper:
    """An AheadStepper if the device samples tokens and feeds them to the next step itself."""
    device_sampler = plain.runner.device_sampler
    return plain if device_sampler is None else AheadStepper(plain, device_sampler)
