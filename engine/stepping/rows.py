"""Rows of decode steps launched ahead, and how they are matched with the scheduled batch.

A sequence's next step is known before its last token is: one token, at the next position, in a
block that it has or can take. Whether that row is needed is known only later, because the
token before it may finish the answer. Nothing here depends on a device.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.kernels.token_logprobs import MOST_TOP_LOGPROBS
from engine.scheduling.chunk import Chunk
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence as Seq


class DecodeRow(NamedTuple):
    """The next token of `seq`, at position `start`: `token`, or the one that row `source` of
    the running step draws. `blocks` is the sequence's list at the launch; after a preemption
    the sequence has a new list.
    """

    seq: Seq
    start: int
    blocks: list[int]
    token: int = 0
    source: int | None = None

    @classmethod
    def of(cls, chunk: Chunk) -> "DecodeRow":
        """The row of a chunk that the scheduler chose."""
        return cls(chunk.seq, chunk.start, chunk.seq.blocks, chunk.tokens[0])

    def is_of(self, chunk: Chunk) -> bool:
        """Whether it computes exactly this chunk; the sequence was not preempted meanwhile."""
        return self.start == chunk.start and chunk.size == 1 and self.blocks is chunk.seq.blocks

    @property
    def leaves(self) -> Iterable[tuple[int, int]]:
        """The copies of its state, if any, behind this row."""
        trail = self.seq.trail
        if trail is None:
            return ()
        return zip(self.seq.state_blocks, trail.target_at(self.start + 1), strict=False)


class ScheduledRow(NamedTuple):
    """A chunk of the scheduled batch, and the index of the row launched for it."""

    chunk: Chunk
    row: int


def can_launch_ahead(chunk: Chunk) -> bool:
    """Whether it is one decode token whose logits are used for nothing but sampling, and whose
    sequence has its state already.

    Log-probabilities are possible for as many of the most likely tokens as kernels return.
    """
    seq = chunk.seq
    alone = chunk.size == 1 and chunk.samples and not seq.parks and seq.prompt_logprobs is None
    alone = alone and (seq.trail is None or not seq.trail.source)
    sampling = seq.request.sampling
    told = sampling.logprobs is None or 0 <= sampling.logprobs <= MOST_TOP_LOGPROBS
    return alone and told


def match_batch(
    begun: Sequence[DecodeRow], batch: Iterable[Chunk]
) -> tuple[list[ScheduledRow], list[Chunk]]:
    """Divide the batch into chunks that were launched ahead, and chunks that were not.

    Rows that match no chunk belong to sequences that finished or were preempted.
    """
    rows = {id(row.seq): index for index, row in enumerate(begun)}
    chosen, others = list[ScheduledRow](), list[Chunk]()
    for chunk in batch:
        index = rows.get(id(chunk.seq))
        if index is not None and begun[index].is_of(chunk):
            chosen.append(ScheduledRow(chunk, index))
        else:
            others.append(chunk)
    return chosen, others


def next_rows(
    scheduler: Scheduler, chosen: Iterable[ScheduledRow], others: Iterable[Chunk]
) -> list[DecodeRow]:
    """The rows of the next step: sequences of the running step, and chunks that missed it.

    Sequences that reach `max_tokens` or have failed are left out, and so are those that would
    take a block that another sequence may need.
    """
    rows, copies = list[DecodeRow](), scheduler.copies_states
    for chunk, index in chosen:
        seq, start = chunk.seq, chunk.start + 1
        if (
            seq.tokens_left > 1
            and seq.failure is None
            and scheduler.try_reserve_position(seq, start)
        ):
            if copies:
                scheduler.prepare_copy(seq, start + 1)
            rows.append(DecodeRow(seq, start, seq.blocks, source=index))
    return rows + [DecodeRow.of(chunk) for chunk in others]
