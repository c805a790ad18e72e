"""What a batch computes of one sequence, and what was sampled behind it. No tensors."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import msgspec

from engine.request import Logprobs
from engine.scheduling.sequence import Sequence
from engine.scheduling.state_trail import StateTrail

BlockCopy = tuple[int, int]
"""From one block to another."""


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """Compute `length` tokens of `seq` from `start`, and behind them the tokens of `drafts`.

    A token is drawn at the sequence's end and behind each draft, exactly as it would be drawn
    one by one. How many of them count is decided afterwards (Sequence.extend).
    """

    seq: Sequence
    start: int
    length: int
    drafts: Seq[int] = ()

    @property
    def ends(self) -> bool:
        """Whether this chunk reaches the sequence's last token."""
        return self.start + self.length == len(self.seq.tokens)

    @property
    def samples(self) -> bool:
        """Whether a new token is drawn behind this chunk."""
        return self.ends and self.seq.pooling is None

    @property
    def size(self) -> int:
        """How many tokens it computes, including drafts."""
        return self.length + len(self.drafts)

    def begins_from(self, trail: StateTrail) -> Iterable[BlockCopy]:
        """The copies from a snapshot, if any, to the sequence's state before this chunk."""
        return zip(trail.source, self.seq.state_blocks, strict=False)

    def leaves(self, trail: StateTrail) -> Iterable[BlockCopy]:
        """The copies from the sequence's state to a snapshot, if any, behind this chunk."""
        target = trail.target_at(self.start + self.length)
        return zip(self.seq.state_blocks, target, strict=False)

    @property
    def tokens(self) -> Seq[int]:
        """All tokens that it computes."""
        ours = self.seq.tokens[self.start : self.start + self.length]
        return [*ours, *self.drafts] if self.drafts else ours


class SampledTokens(msgspec.Struct, frozen=True, eq=False):
    """Tokens sampled at a sequence's end and behind each draft; `logprobs` of all, or empty."""

    tokens: Seq[int]
    logprobs: Seq[Logprobs] = ()
