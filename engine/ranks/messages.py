"""Messages from the leading rank to its followers: msgpack frames with packed numbers.

A batch is sent as its plan, and each rank builds its own tensors from it: tokens, and for each
sequence its start, length and blocks.
"""

from array import array
from collections.abc import Sequence
from itertools import chain, islice

import msgspec

from engine.attention.paged import Span
from engine.attention.plan import BlockCopies, Plan, RowSampling, SamplingPlan

NO_ADAPTER = -1
NUMBER = "i"  # four bytes: tokens, positions and blocks are below 2**31
PLACEHOLDER = RowSampling(0.0, 0, 1.0, 0.0, (0, 0))


class RunPlan(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Run one plan, in which the first `singles` sequences have one token each.

    `spans` has five numbers for each sequence: start, length, how many of `blocks` are of its
    KV, and behind them of its state, and its adapter or NO_ADAPTER. The leading rank draws
    `draws` tokens behind it. `copies` has two numbers for each block that is copied, the first
    `before` of them before the plan is run, the others behind it.
    """

    tokens: bytes
    spans: bytes
    blocks: bytes
    singles: int
    picks: bytes
    sources: bytes = b""
    draws: int = 0
    copies: bytes = b""
    before: int = 0

    @classmethod
    def of(cls, plan: Plan) -> "RunPlan":
        """Pack a plan."""
        spans, blocks = array(NUMBER), array(NUMBER)
        for span in (*plan.singles, *plan.chunks):
            adapter = NO_ADAPTER if span.adapter is None else span.adapter
            counts = len(span.blocks), len(span.state)
            spans.extend((span.start, span.length, *counts, adapter))
            blocks.extend((*span.blocks, *span.state))
        tokens, picks, sources = (
            array(NUMBER, one).tobytes() for one in (plan.tokens, plan.picks, plan.sources)
        )
        places = spans.tobytes(), blocks.tobytes()
        draws = 0 if plan.sampling is None else len(plan.sampling.draws)
        copies = array(NUMBER, [one for copy in chain(*plan.copies) for one in copy]).tobytes()
        before, singles = len(plan.copies.before), len(plan.singles)
        return cls(tokens, *places, singles, picks, sources, draws, copies, before)

    def read(self) -> Plan:
        """Unpack the plan, without sampling settings, which only the leader uses."""
        blocks, spans = iter(_numbers(self.blocks)), list[Span]()
        numbers = iter(_numbers(self.spans))
        for start, length, *counts, number in zip(*[numbers] * 5, strict=True):
            adapter = None if number == NO_ADAPTER else number
            ours, state = (list(islice(blocks, count)) for count in counts)
            spans.append(Span(start, length, ours, adapter, state))
        singles, chunks = spans[: self.singles], spans[self.singles :]
        tokens, picks, sources = map(_numbers, (self.tokens, self.picks, self.sources))
        drawing = SamplingPlan([PLACEHOLDER] * self.draws) if self.draws else None
        ends = iter(_numbers(self.copies))
        copies = list(zip(ends, ends, strict=True))
        places = BlockCopies(copies[: self.before], copies[self.before :])
        return Plan(tokens, singles, chunks, picks, drawing, sources, places)


class ComputeLogits(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Compute your part of the logits of `rows` hidden states, which are broadcast next."""

    rows: int


class ClearBehind(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """Clear a block behind its first `tokens`, and report when it is done."""

    block: int
    tokens: int


class ReceiveTokens(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """Receive `count` tokens of the last plan, which the leader samples and broadcasts now."""

    count: int


class RunHead(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """Run a pass of the draft head: see HeadRunner. `rows` has two numbers for each range; the
    states are those of the last plan, or with `again` of the head's own last pass.
    """

    plan: RunPlan
    rows: bytes
    again: bool

    @classmethod
    def of(cls, plan: Plan, rows: Sequence[range], *, again: bool) -> "RunHead":
        """Pack a pass."""
        ends = [end for one in rows for end in (one.start, one.stop)]
        return cls(RunPlan.of(plan), array(NUMBER, ends).tobytes(), again)

    def read_rows(self) -> list[range]:
        """Unpack the ranges."""
        ends = iter(_numbers(self.rows))
        return [range(start, stop) for start, stop in zip(ends, ends, strict=True)]


RankMessage = RunPlan | ComputeLogits | ClearBehind | ReceiveTokens | RunHead
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RankMessage)


def encode(message: RankMessage) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def decode(frame: bytes) -> RankMessage:
    """The message in one frame."""
    message: RankMessage = _decoder.decode(frame)
    return message


def _numbers(data: bytes) -> list[int]:
    found = array(NUMBER)
    found.frombytes(data)
    return found.tolist()
