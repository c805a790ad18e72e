"""Draft tokens from a smaller model: speculative decoding (Leviathan et al. 2023).

The draft model runs over the same block ids as the model that it drafts for, in a KV memory of
its own: a sequence's blocks hold its draft KV at the same places. So nothing is allocated for
drafts, and sequences that share a block share its draft KV. What is missing there (a prompt
whose KV came from another node, or tokens that were not drafted) is computed before the next
draft, as far as one batch reaches.

A draft is sampled as the model's own tokens are: with the request's settings, its grammar, and
the noise of its position. Noise depends on nothing else (docs/decisions/0005), so both models
get the same, and the draft at a position is right about as often as their distributions agree.
The verification compares tokens alone. By a device, see also engine/stepping/chained_drafts.py.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.paged import Span
from engine.attention.plan import Plan, SamplingPlan
from engine.models.draft_head import IMPOSSIBLE
from engine.running.runner import ForwardOutput, PendingTokens, Runner
from engine.sampling.sampler import Sampler, SamplerRow
from engine.scheduling.drafting import Pace, draft_in_turn
from engine.scheduling.sequence import Sequence
from engine.stepping.chained_drafts import (
    DrawnRows,
    can_be_chained,
    draft_chained,
    draws_behind,
)

FIRST_LENGTH = 4
UNKNOWN = 0
"""Is read instead of a token that the draft model does not have."""


class _Piece(NamedTuple):
    """Tokens of a sequence that are run, from position `start` on, in one batch with others.

    A token is drawn behind them and behind those `drafted`; None: no token is.
    """

    seq: Sequence
    start: int
    tokens: Seq[int]
    drafted: Seq[int] | None


@dataclass(slots=True)
class DraftRecord:
    """One sequence's drafts. Its first `computed` tokens have draft KV, and so have the next
    ones if they are the drafts `ahead`. The first `noted` blocks are in ModelDrafter's notes.
    """

    pace: Pace
    computed: int = 0
    ahead: Seq[int] = ()
    noted: int = 0

    def settle(self, tokens: Seq[int]) -> None:
        """Count the drafts that came true. The last token is always run, to draw behind it."""
        for token in self.ahead:
            if self.computed == len(tokens) or tokens[self.computed] != token:
                break
            self.computed += 1
        self.ahead = ()
        self.computed = min(self.computed, len(tokens) - 1)


@dataclass(slots=True)
class ModelDrafter:
    """See Drafter. `runner` runs the draft model, and `sampler` is that of the model itself.

    No draft has more than `most_drafts` tokens, no batch more than `most_tokens`, and no
    sequence is drafted for beyond `longest` tokens, which the draft model's positions are.
    `vocabulary` is the draft model's.
    """

    runner: Runner
    sampler: Sampler
    vocabulary: int
    block_size: int
    longest: int
    most_tokens: int
    most_drafts: int
    _keys: dict[int, bytes] = field(default_factory=dict)
    """The key of each block whose draft KV is whole."""

    def wanted(self, seq: Sequence, most: int) -> int:
        """See Drafter."""
        left = self.longest - len(seq.tokens)
        return self._record(seq).pace.allowed(seq, max(0, min(most, left)))

    def rests(self, seqs: Iterable[Sequence]) -> bool:
        """See Drafter."""
        return all(self._record(seq).pace.rests(seq) for seq in seqs)

    @torch.inference_mode()
    def draft(self, granted: Mapping[Sequence, int]) -> Mapping[Sequence, Seq[int]]:
        """See Drafter. Sequences that are not computed to their end yet get no drafts."""
        pieces = self._missing(list(granted))
        ended = [piece.seq for piece in pieces if piece.drafted is not None]
        if self._can_chain(ended):
            ran = self._run(pieces, draws_behind(ended))
            assert ran.pending is not None, "a runner that draws"
            self._note_all(pieces)
            rows = {seq: row for row, seq in enumerate(ended)}
            drafts = draft_chained(DrawnRows(rows, ran.pending), granted, self._launch)
        else:
            drawn = self._drawn(pieces, self._run(pieces))
            self._note_all(pieces)
            drafts = draft_in_turn(drawn, granted, self._run_behind)
        for seq, tokens in drafts.items():
            self._record(seq).ahead = tokens[:-1]
        return drafts

    def record_acceptance(self, seq: Sequence, drafted: int, accepted: int) -> None:
        """See Drafter."""
        self._record(seq).pace.record(seq, drafted, accepted)

    def _record(self, seq: Sequence) -> DraftRecord:
        if not isinstance(seq.drafting, DraftRecord):
            seq.drafting = DraftRecord(Pace.starting(FIRST_LENGTH, self.most_drafts))
        return seq.drafting

    def _skip_whole(self, seq: Sequence, record: DraftRecord) -> None:
        """Go on behind the next blocks whose draft KV is whole by now: others share them."""
        index, rest = divmod(record.computed, self.block_size)
        last = (len(seq.tokens) - 1) // self.block_size  # has the last token, which is run
        while not rest and index < min(last, len(seq.keys), len(seq.blocks)):
            if self._keys.get(seq.blocks[index]) != seq.keys[index]:
                break
            index += 1
            record.noted = max(record.noted, index)
            record.computed = index * self.block_size

    def _can_chain(self, seqs: Seq[Sequence]) -> bool:
        """Whether the runner draws their drafts, of which the model has every one."""
        draws = self.runner.device_sampler is not None
        known = self.vocabulary <= self.sampler.vocabulary
        return bool(seqs) and draws and known and can_be_chained(seqs)

    def _missing(self, seqs: Seq[Sequence]) -> list[_Piece]:
        """What is missing of the sequences, of those that miss least first, in one batch. A
        token is drawn behind each that is computed to its end.
        """
        pieces, spare, missing = list[_Piece](), self.most_tokens, dict[Sequence, int]()
        for seq in seqs:
            record = self._record(seq)
            record.settle(seq.tokens)
            self._skip_whole(seq, record)
            missing[seq] = len(seq.tokens) - record.computed
        for seq in sorted(seqs, key=missing.__getitem__):
            start, length = self._record(seq).computed, min(missing[seq], spare)
            drafted = () if length == missing[seq] else None
            pieces.append(_Piece(seq, start, seq.tokens[start : start + length], drafted))
            spare -= length
            if not spare:
                break
        return sorted(pieces, key=_is_chunk)

    def _run_behind(self, drafts: Mapping[Sequence, Seq[int]]) -> dict[Sequence, int]:
        """Draw one more token behind these drafts."""
        pieces = [
            _Piece(seq, len(seq.tokens) + len(drafted) - 1, drafted[-1:], drafted)
            for seq, drafted in drafts.items()
        ]
        return self._drawn(pieces, self._run(pieces))

    def _launch(
        self, seqs: Seq[Sequence], drafted: int, sources: Seq[int], drawing: SamplingPlan
    ) -> PendingTokens:
        """See Launch."""
        pieces = [_Piece(seq, len(seq.tokens) + drafted - 1, [UNKNOWN], ()) for seq in seqs]
        pending = self._run(pieces, drawing, sources).pending
        assert pending is not None, "a runner that draws"
        return pending

    def _run(
        self,
        pieces: Seq[_Piece],
        drawing: SamplingPlan | None = None,
        sources: Seq[int] = (),
    ) -> ForwardOutput:
        """Run one batch: single tokens, then chunks."""
        tokens, picks = list[int](), list[int]()
        for seq, start, some, drafted in pieces:
            self._forget(seq, start, len(some))
            tokens += [one if one < self.vocabulary else UNKNOWN for one in some]
            if drafted is not None:
                picks.append(len(tokens) - 1)
        spans = [Span(piece.start, len(piece.tokens), piece.seq.blocks) for piece in pieces]
        singles = sum(span.length == 1 for span in spans)
        return self.runner.run(
            Plan(tokens, spans[:singles], spans[singles:], picks, drawing, sources)
        )

    def _drawn(self, pieces: Seq[_Piece], ran: ForwardOutput) -> dict[Sequence, int]:
        """The tokens that the host draws behind a batch."""
        if ran.logits is None:
            ran.hidden[-1, 0].item()  # wait for the device, before the next batch is staged
            return {}
        drawing = [
            SamplerRow(piece.seq, tuple(piece.drafted))
            for piece in pieces
            if piece.drafted is not None
        ]
        logits = self._of_vocabulary(ran.logits)
        drawn = self.sampler.sample(logits, drawing, logprobs=False).tokens
        return {row.seq: token for row, token in zip(drawing, drawn, strict=True)}

    def _of_vocabulary(self, logits: Tensor) -> Tensor:
        """[rows, the draft model's vocabulary] to [rows, the model's]."""
        missing = self.sampler.vocabulary - logits.shape[1]
        if missing > 0:
            return F.pad(logits, (0, missing), value=IMPOSSIBLE)
        return logits[:, : self.sampler.vocabulary].contiguous()

    def _forget(self, seq: Sequence, start: int, length: int) -> None:
        """Draft KV is written to these positions: their blocks may become others'."""
        size = self.block_size
        for block in seq.blocks[start // size : -(-(start + length) // size)]:
            self._keys.pop(block, None)

    def _note_all(self, pieces: Iterable[_Piece]) -> None:
        for piece in pieces:
            self._note(piece.seq, piece.start + len(piece.tokens))

    def _note(self, seq: Sequence, computed: int) -> None:
        """Remember the whole blocks up to `computed`, for sequences that will share them."""
        record = self._record(seq)
        record.computed, full = computed, computed // self.block_size
        named = min(full, len(seq.keys))
        for index in range(record.noted, named):
            self._keys[seq.blocks[index]] = seq.keys[index]
        record.noted = max(record.noted, named)


def _is_chunk(piece: _Piece) -> bool:
    return len(piece.tokens) > 1
