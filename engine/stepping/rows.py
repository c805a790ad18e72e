"""Rows of decode steps launched ahead, and how they are matched with the scheduled batch.

A sequence's next step is known while its last token is not: one token, at the next position,
in a block that it has or can have. Whether that row is needed is known only later: the token
before it may have finished the answer. Nothing here knows a device.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.kernels.token_logprobs import MOST_TOP_LOGPROBS
from engine.scheduling.scheduler import Chunk, Scheduler
from engine.scheduling.sequence import Sequence as Seq


class DecodeRow(NamedTuple):
    """The next token of `seq`, at `start`: `token`, or what row `source` of the running step
    draws. `blocks` is the sequence's list at the launch: a preemption gives it a new list.
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


class ScheduledRow(NamedTuple):
    """A chunk of the scheduled batch, and the index of the row launched for it."""

    chunk: Chunk
    row: int


def can_launch_ahead(chunk: Chunk) -> bool:
    """Whether it is one decode token whose logits are only sampled from.

    Log-probabilities are possible for as many of the likeliest as kernels return.
    """
    seq = chunk.seq
    alone = chunk.size == 1 and chunk.samples and not seq.parks and seq.prompt_logprobs is None
    sampling = seq.request.sampling
    told = sampling.logprobs is None or 0 <= sampling.logprobs <= MOST_TOP_LOGPROBS
    return alone and told


def match_batch(
    begun: Sequence[DecodeRow], batch: Iterable[Chunk]
) -> tuple[list[ScheduledRow], list[Chunk]]:
    """Which chunks of the batch were launched ahead, and the chunks that were not.

    Rows that match no chunk are of sequences that finished or were preempted.
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

    Without sequences that reach `max_tokens` or have failed, and those that would need a block
    that another sequence may need.
    """
    rows = list[DecodeRow]()
    for chunk, index in chosen:
        seq, start = chunk.seq, chunk.start + 1
        if (
            seq.tokens_left > 1
            and seq.failure is None
            and scheduler.try_reserve_position(seq, start)
        ):
            rows.append(DecodeRow(seq, start, seq.blocks, source=index))
    return rows + [DecodeRow.of(chunk) for chunk in others]
