"""The Stepper contract, and the plain stepper: one batch after the other."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from engine.api import Pooled, StepResult
from engine.attention.paged import Span
from engine.attention.plan import BlockCopies, Plan
from engine.models.model import Model
from engine.pooling.pooler import Pooler
from engine.request import RequestId
from engine.running.runner import Runner
from engine.sampling.prompt_logprobs import record_prompt_logprobs
from engine.sampling.sampler import Sampler, SamplerOutput, SamplerRow
from engine.scheduling.chunk import Chunk, SampledTokens
from engine.scheduling.scheduler import Scheduler
from engine.stepping.head_drafter import HeadDrafter, RanChunk


class Stepper(Protocol):
    """Runs the batch that the scheduler chose, and commits its tokens."""

    def step(self) -> StepResult:
        """Run the scheduled batch, which is not empty."""

    def synchronize(self, blocks: Iterable[int]) -> None:
        """Wait until no launched step uses any of `blocks`, which were just handed out."""

    def finish(self) -> None:
        """Wait until all launched steps have finished on the device."""

    def save_before_launch(self, save: Callable[[], None]) -> None:
        """Set `save`, which copies evicted blocks to the lower tiers: it is called before each
        launch that writes to blocks given out since the batch was chosen.
        """

    def run_behind(self, head: HeadDrafter) -> None:
        """Run a draft head behind each step from now on; it is the scheduler's drafter."""


@dataclass(slots=True)
class PlainStepper:
    """Runs one step at a time, and the draft head, if there is one, behind each.

    Nothing is left running when `step` returns.
    """

    scheduler: Scheduler
    model: Model
    runner: Runner
    sampler: Sampler
    pooler: Pooler
    head: HeadDrafter | None = None

    @torch.inference_mode()
    def step(self) -> StepResult:
        """Run one forward pass, then sample or pool."""
        ordered = sorted(self.scheduler.batch, key=_place)
        ran = self.runner.run(_plan(ordered))
        scored = list(record_prompt_logprobs(ordered, ran.hidden, self.model.logits))
        pooled = self._pool(ordered, ran.hidden)
        if ran.logits is None:
            ran.hidden[-1, 0].item()  # wait for the device: other nodes read filled blocks
            drawn = dict[RequestId, SampledTokens]()
        else:
            drawn = self._sample(ordered, ran.logits)
        if self.head is None:
            result = self.scheduler.commit(drawn)
        else:
            chunks = list(_with_rows(ordered))
            result = self.scheduler.commit(drawn)
            self.head.follow(chunks, ran.hidden)
        return replace(result, pooled=pooled, scored=scored)

    def synchronize(self, blocks: Iterable[int]) -> None:
        """Nothing runs between steps."""

    def finish(self) -> None:
        """Nothing runs between steps."""

    def save_before_launch(self, save: Callable[[], None]) -> None:
        """Not needed: no block is given out between the choice of a batch and its run."""

    def run_behind(self, head: HeadDrafter) -> None:
        """See Stepper."""
        self.head = head

    def _pool(self, batch: Seq[Chunk], hidden: torch.Tensor) -> list[Pooled]:
        """The results of pooling requests whose last chunk was in this batch."""
        pooled, first = list[Pooled](), 0
        for chunk in batch:
            if chunk.seq.pooling is not None:
                rows = hidden[first : first + chunk.size]
                one = self.pooler.add(chunk.seq.pooling, chunk.start, rows)
                pooled += [] if one is None else [one]
            first += chunk.size
        return pooled

    def _sample(
        self, batch: Seq[Chunk], logits: torch.Tensor
    ) -> dict[RequestId, SampledTokens]:
        """The tokens behind each sequence that was run to its end, and behind its drafts."""
        sampling = [chunk for chunk in batch if chunk.samples]
        draws = [
            SamplerRow(chunk.seq, tuple(chunk.drafts[:ahead]))
            for chunk in sampling
            for ahead in range(len(chunk.drafts) + 1)
        ]
        return dict(_by_request(sampling, self.sampler.sample(logits, draws)))


def _place(chunk: Chunk) -> tuple[bool, int]:
    """Sort key: single tokens first, by length, so that similar lengths are neighbours."""
    return chunk.size > 1, chunk.start


def _plan(ordered: Seq[Chunk]) -> Plan:
    """The batch as a Plan; a token is drawn at each sequence's end and behind its drafts."""
    tokens, picks = list[int](), list[int]()
    spans = [
        Span(one.start, one.size, one.seq.blocks, one.seq.adapter, one.seq.state_blocks)
        for one in ordered
    ]
    for chunk in ordered:
        tokens += chunk.tokens
        if chunk.samples:
            picks += range(len(tokens) - len(chunk.drafts) - 1, len(tokens))
    singles = sum(span.length == 1 for span in spans)
    copies = _copies(ordered)
    return Plan(tokens, spans[:singles], spans[singles:], picks, copies=copies)


def _copies(ordered: Seq[Chunk]) -> BlockCopies:
    """The copies of states around a batch; nearly always there are none."""
    moving = [(one, trail) for one in ordered if (trail := one.seq.trail) is not None]
    before = [copy for chunk, trail in moving for copy in chunk.begins_from(trail)]
    return BlockCopies(before, [copy for one, trail in moving for copy in one.leaves(trail)])


def _with_rows(ordered: Seq[Chunk]) -> Iterator[RanChunk]:
    row = 0
    for chunk in ordered:
        yield RanChunk(chunk, chunk.seq.blocks, row)
        row += chunk.size


def _by_request(
    sampling: Seq[Chunk], drawn: SamplerOutput
) -> Iterator[tuple[RequestId, SampledTokens]]:
    """Each chunk's rows: one, and one more for each of its drafts."""
    row = 0
    for chunk in sampling:
        rows = range(row, row := row + len(chunk.drafts) + 1)
        logprobs = [drawn.logprobs[one] for one in rows] if row - 1 in drawn.logprobs else ()
        yield chunk.seq.request_id, SampledTokens(drawn.tokens[rows.start : row], logprobs)
