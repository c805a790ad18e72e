"""Draft tokens from a draft head (engine/models/draft_head.py).

The head reads the model's hidden states, which exist only while a step's output does. So it is
run behind every step, over all tokens whose next token is known by then: those of prompts, and
those that were just sampled, even if the host has not read them yet. That leaves its KV
complete wherever the model's is: a block that is handed over, shared, or kept in a lower tier
has it, and nothing is ever caught up on.

The head's KV at the last place of a block depends on the token behind the block. Sequences that
share a block may go on differently: the head then reads another's token there. That may cost an
accepted draft, and no token is changed by it.

How drafts are sampled, see engine/stepping/draft_model.py; by a device, also
engine/stepping/chained_drafts.py.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.paged import Span
from engine.attention.plan import Plan, SamplingPlan
from engine.running.head_runner import HeadRunner
from engine.running.runner import ForwardOutput, PendingTokens
from engine.sampling.sampler import Sampler, SamplerRow
from engine.scheduling.chunk import Chunk
from engine.scheduling.drafting import Pace, draft_in_turn
from engine.scheduling.sequence import Sequence
from engine.stepping.chained_drafts import (
    DrawnRows,
    can_be_chained,
    draft_chained,
    draws_behind,
)

FIRST_LENGTH = 1  # the head was taught to predict one token
UNREAD = 0  # in place of a token that the device knows


class RanChunk(NamedTuple):
    """A chunk of a step, the blocks that it had, which its sequence may have given back, and
    the first of its rows in the step's output.
    """

    chunk: Chunk
    blocks: Seq[int]
    row: int


class _Piece(NamedTuple):
    """Positions of a sequence from `start` on, and the tokens behind each of them; `rows` have
    the hidden states. With `draws`, a draft is wanted behind the last.
    """

    seq: Sequence
    start: int
    tokens: Seq[int]
    blocks: Seq[int]
    rows: range
    draws: bool = True


@dataclass(slots=True)
class HeadDrafter:
    """See Drafter; `follow` or `follow_unread` is called for each step. No draft has more than
    `most_drafts` tokens, and none begin while more than `most_drafting` sequences could have
    one.

    Drafts are written to blocks that were given out since the last step, so `save_blocks`,
    which copies evicted blocks to the lower tiers, is called before.
    """

    runner: HeadRunner
    sampler: Sampler
    save_blocks: Callable[[], None]
    most_drafts: int
    most_drafting: int | None = None
    _ran: ForwardOutput | None = None
    _drawing: dict[Sequence, int] = field(default_factory=dict)
    """The sequences that can be drafted for, with their rows of the last pass's output."""

    @torch.inference_mode()
    def follow(self, ran: Iterable[RanChunk], hidden: Tensor) -> None:
        """Run the head behind a step that was committed, and wait until it has.

        `hidden` [tokens, hidden] is the step's output.
        """
        pieces = list[_Piece]()
        for chunk, blocks, first in ran:
            seq, start = chunk.seq, chunk.start
            # a draft that was not accepted is not among the sequence's tokens
            end = min(start + chunk.size, len(seq.tokens) - 1)
            if end > start:
                tokens = seq.tokens[start + 1 : end + 1]
                rows = range(first, first + len(tokens))
                draws = end == len(seq.tokens) - 1 and self._may_draft(seq)
                pieces.append(_Piece(seq, start, tokens, blocks, rows, draws))
        self._ran, self._drawing = None, {}
        if pieces:
            pieces = sorted(self._limited(pieces), key=_is_chunk)
            drawing = self._drawn_at_once([one.seq for one in pieces if one.draws])
            self._run(pieces, hidden, drawing)
            assert self._ran is not None
            self._ran.hidden[-1, 0].item()  # other nodes read filled blocks

    @torch.inference_mode()
    def follow_unread(self, ran: Seq[RanChunk], hidden: Tensor) -> None:
        """Launch the head behind a step of single tokens, of which the host has read none yet:
        the device knows what each of their rows drew. There are no drafts behind this.
        """
        self._ran, self._drawing = None, {}
        rows = [one.row for one in ran]
        spans = [Span(one.chunk.start, 1, one.blocks) for one in ran]
        plan = Plan([0] * len(rows), spans, (), (), sources=rows)
        self.runner.run(plan, [range(row, row + 1) for row in rows], hidden)

    def wanted(self, seq: Sequence, most: int) -> int:
        """See Drafter. Nothing behind a token whose step was elsewhere."""
        return self._pace(seq).allowed(seq, most) if seq in self._drawing else 0

    def rests(self, seqs: Iterable[Sequence]) -> bool:
        """See Drafter."""
        return all(self._pace(seq).rests(seq) for seq in seqs)

    @torch.inference_mode()
    def draft(self, granted: Mapping[Sequence, int]) -> Mapping[Sequence, Seq[int]]:
        """See Drafter."""
        self.save_blocks()
        if self._ran is not None and self._ran.pending is not None:
            places = {seq: at for at, seq in enumerate(self._drawing)}
            return draft_chained(DrawnRows(places, self._ran.pending), granted, self._launch)
        return draft_in_turn(self._draw(dict.fromkeys(granted, ())), granted, self._run_behind)

    def record_acceptance(self, seq: Sequence, drafted: int, accepted: int) -> None:
        """See Drafter."""
        self._pace(seq).record(seq, drafted, accepted)

    def _pace(self, seq: Sequence) -> Pace:
        if not isinstance(seq.drafting, Pace):
            seq.drafting = Pace.starting(FIRST_LENGTH, self.most_drafts)
        return seq.drafting

    def _limited(self, pieces: list[_Piece]) -> list[_Piece]:
        """Without wishes for drafts that nobody will ask for: their logits would be in vain."""
        if self.most_drafting is None or sum(one.draws for one in pieces) <= self.most_drafting:
            return pieces
        return [piece._replace(draws=False) for piece in pieces]

    def _drawn_at_once(self, seqs: Seq[Sequence]) -> SamplingPlan | None:
        """How the runner draws behind these, with the pass; None: the host does, later."""
        at_once = seqs and self.runner.draws and can_be_chained(seqs)
        return draws_behind(seqs) if at_once else None

    def _may_draft(self, seq: Sequence) -> bool:
        decodes = seq.blocks and not seq.parks  # what ended, or was pooled, has none
        return bool(decodes) and self._pace(seq).allowed(seq, seq.tokens_left - 1) > 0

    def _run_behind(self, drafts: Mapping[Sequence, Seq[int]]) -> dict[Sequence, int]:
        """Draw one more token behind these drafts, each by the head's state behind the last."""
        pieces = list[_Piece]()
        for seq, drafted in drafts.items():
            row, start = self._drawing[seq], len(seq.tokens) - 2 + len(drafted)
            rows = range(row, row + 1)
            pieces.append(_Piece(seq, start, drafted[-1:], seq.blocks, rows))
        self._run(pieces, None)
        return self._draw(drafts)

    def _launch(
        self, seqs: Seq[Sequence], drafted: int, sources: Seq[int], drawing: SamplingPlan
    ) -> PendingTokens:
        """See Launch."""
        pieces = list[_Piece]()
        for seq in seqs:
            row, start = self._drawing[seq], len(seq.tokens) - 2 + drafted
            pieces.append(_Piece(seq, start, [UNREAD], seq.blocks, range(row, row + 1)))
        self._run(pieces, None, drawing, sources)
        assert self._ran is not None
        assert self._ran.pending is not None, "as the pass before it drew, this one does"
        return self._ran.pending

    def _run(
        self,
        pieces: Seq[_Piece],
        hidden: Tensor | None,
        drawing: SamplingPlan | None = None,
        sources: Seq[int] = (),
    ) -> None:
        """Run one pass behind the model's, or behind the head's own: single tokens, then
        chunks.
        """
        tokens, picks, self._drawing = list[int](), list[int](), {}
        for piece in pieces:
            tokens += piece.tokens
            if piece.draws:
                self._drawing[piece.seq] = len(tokens) - 1
                picks.append(len(tokens) - 1)
        spans = [Span(one.start, len(one.tokens), one.blocks) for one in pieces]
        singles = sum(span.length == 1 for span in spans)
        plan = Plan(tokens, spans[:singles], spans[singles:], picks, drawing, sources)
        self._ran = self.runner.run(plan, [one.rows for one in pieces], hidden)

    def _draw(self, drafts: Mapping[Sequence, Seq[int]]) -> dict[Sequence, int]:
        """Sample a token behind each of these, from the logits of the last pass."""
        if not drafts or self._ran is None or self._ran.logits is None:
            return {}
        places = {seq: at for at, seq in enumerate(self._drawing)}
        rows = [places[seq] for seq in drafts]
        drawing = [SamplerRow(seq, tuple(drafted)) for seq, drafted in drafts.items()]
        logits = self._ran.logits[rows]
        drawn = self.sampler.sample(logits, drawing, logprobs=False).tokens
        return dict(zip(drafts, drawn, strict=True))


def _is_chunk(piece: _Piece) -> bool:
    return len(piece.tokens) > 1
