"""Which next tokens can be begun before the scheduler asks for them, and which it asks for.

A sequence's next step is known while its last token is not: one token, at the next position,
in a block that it has or can have. Whether it is wanted is known only later: the token before
it may have been its last. Nothing here knows a device.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.kernels.token_logprobs import MOST_TOP_LOGPROBS
from engine.scheduling.scheduler import Chunk, Scheduler
from engine.scheduling.sequence import Sequence as Seq


class Row(NamedTuple):
    """The next token of `seq`, at `start`: `token`, or what row `source` draws just now.

    `blocks` is the sequence's list as it was: should it be put back, it has another one then.
    """

    seq: Seq
    start: int
    blocks: list[int]
    token: int = 0
    source: int | None = None

    @classmethod
    def of(cls, chunk: Chunk) -> "Row":
        """One that the scheduler chose."""
        return cls(chunk.seq, chunk.start, chunk.seq.blocks, chunk.tokens[0])

    def is_of(self, chunk: Chunk) -> bool:
        """Whether it is all of a chunk of its sequence, which was not put back meanwhile."""
        return self.start == chunk.start and chunk.size == 1 and self.blocks is chunk.seq.blocks


class Chosen(NamedTuple):
    """A chunk of the batch, and the row that was begun for it."""

    chunk: Chunk
    row: int


def is_foreseeable(chunk: Chunk) -> bool:
    """Whether it is one token, and all that is to be done with its logits is to draw from them.

    Log-probabilities are told of as many of the likeliest as kernels take.
    """
    seq = chunk.seq
    alone = chunk.size == 1 and chunk.samples and not seq.parks and seq.prompt_logprobs is None
    sampling = seq.request.sampling
    told = sampling.logprobs is None or 0 <= sampling.logprobs <= MOST_TOP_LOGPROBS
    return alone and told


def chosen_of(begun: Sequence[Row], batch: Iterable[Chunk]) -> tuple[list[Chosen], list[Chunk]]:
    """What of the batch was begun, and the others.

    The rows of those that are over mean nothing any more.
    """
    rows = {id(row.seq): index for index, row in enumerate(begun)}
    chosen, others = list[Chosen](), list[Chunk]()
    for chunk in batch:
        index = rows.get(id(chunk.seq))
        if index is not None and begun[index].is_of(chunk):
            chosen.append(Chosen(chunk, index))
        else:
            others.append(chunk)
    return chosen, others


def next_rows(
    scheduler: Scheduler, chosen: Iterable[Chosen], others: Iterable[Chunk]
) -> list[Row]:
    """The step behind the one that runs: who goes on from it, and who could not join it.

    Whoever has its last token by number now, or has failed, does not go on, nor who would need
    a block that somebody else may need.
    """
    rows = list[Row]()
    for chunk, index in chosen:
        seq, start = chunk.seq, chunk.start + 1
        if (
            seq.tokens_left > 1
            and seq.failure is None
            and scheduler.try_reserve_position(seq, start)
        ):
            rows.append(Row(seq, start, seq.blocks, source=index))
    return rows + [Row.of(chunk) for chunk in others]
