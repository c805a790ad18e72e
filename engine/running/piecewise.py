"""Piecewise CUDA graphs: steps of few tokens that are not one token for each sequence.

A short prompt, a chat's new tokens behind a cached prefix, drafts to be verified, or one of
these beside decode rows: some hundred tokens keep the device busy for less time than the host
takes to launch all kernels of the step one by one. Only attention depends on how these tokens
are divided into sequences, and so do layers that keep a state, in its place or beside it.
Everything between two of these depends on the number of tokens alone, so that is captured, for
some numbers of tokens, and attention is launched in between:

    graph: embed, norm, qkv, rope, write KV | attention 0 | graph: o, norm, mlp, norm, qkv, ...
    | attention 1 | ... | graph: o, norm, mlp, norm

A batch is padded with unused rows up to the next captured number of tokens. The kernels of
larger batches keep the device busy for longer than the host needs, and are launched one by one:
docs/decisions/0082-short-prompts-in-pieces.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor

from engine.attention.device_batch import DeviceBatch
from engine.kernels.recurrent import RecurrentInputs, RecurrentWeights
from engine.kernels.style import AttentionStyle
from engine.running.recorder import Cut, Recorder, Replay
from engine.running.warming import with_progress

SIZES = (4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
"""Tokens. Up to 128 a step takes as long as reading the weights, so padding costs little."""


def piece_sizes(most: int) -> list[int]:
    """The numbers of tokens that are captured if a batch has at most `most`; ascending."""
    return [*(size for size in SIZES if size < most), *([most] if most <= SIZES[-1] else [])]


class Attending(Protocol):
    """The part of a batch that is launched between pieces."""

    def attend_into(
        self, layer: int, style: AttentionStyle, queries: Tensor, read: Tensor, /
    ) -> None:
        """[tokens, heads, width] against the layer's KV, into [tokens, heads * value width]."""

    def recurrence_into(
        self, layer: int, weights: RecurrentWeights, inputs: RecurrentInputs, read: Tensor, /
    ) -> None:
        """Through the layer's states, into [tokens, values]."""


class AttentionCall(NamedTuple):
    """An attention between two pieces: where it reads queries, and where it writes results."""

    layer: int
    style: AttentionStyle
    queries: Tensor  # [tokens, heads, width]
    read: Tensor  # [tokens, heads * value width]

    def launch(self, batch: Attending) -> None:
        """Of this batch."""
        batch.attend_into(*self)


class RecurrentCall(NamedTuple):
    """A recurrent layer between two pieces, likewise."""

    layer: int
    weights: RecurrentWeights
    inputs: RecurrentInputs
    read: Tensor  # [tokens, values]

    def launch(self, batch: Attending) -> None:
        """Of this batch."""
        batch.recurrence_into(*self)


Call: TypeAlias = AttentionCall | RecurrentCall


@dataclass(slots=True, eq=False, kw_only=True)
class CutBatch(DeviceBatch):
    """A batch whose forward pass is captured: what reads KV or states ends a piece, and is
    recorded.
    """

    recorder: Recorder
    cut: Cut
    calls: list[Call] = field(default_factory=list)

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """See Batch."""
        read, lend = self.room_for(queries), self.recorder.lend
        self.calls.append(AttentionCall(layer, style, lend(queries), lend(read)))
        self.cut(partial(self.attend_into, layer, style, queries, read))
        return read

    def recurrence(
        self, layer: int, weights: RecurrentWeights, inputs: RecurrentInputs
    ) -> Tensor:
        """See Batch."""
        read, lend = self.room_for_values(weights, inputs), self.recorder.lend
        lent = RecurrentInputs(*map(lend, inputs))
        self.calls.append(RecurrentCall(layer, weights, lent, lend(read)))
        self.cut(partial(self.recurrence_into, layer, weights, inputs, read))
        return read


Forward: TypeAlias = Callable[[Cut], tuple[Tensor, Sequence[Call]]]
"""A forward pass to be captured; returns [tokens, hidden], and its calls between pieces."""


class _Pieces(NamedTuple):
    """The graphs of one size, and the attention `calls` between them: one fewer."""

    replays: Sequence[Replay]
    calls: Sequence[Call]

    def run(self, batch: Attending) -> None:
        first, *others = self.replays
        first()
        for call, replay in zip(self.calls, others, strict=True):
            call.launch(batch)
            replay()


@dataclass(slots=True)
class PiecewiseGraphs:
    """The graphs of each size; all write to `hidden`, [largest size, hidden size]."""

    hidden: Tensor
    _pieces: dict[int, _Pieces] = field(default_factory=dict)

    @property
    def sizes(self) -> Sequence[int]:
        """The captured sizes, ascending."""
        return sorted(self._pieces)

    def capture(
        self, recorder: Recorder, sizes: Sequence[int], forward_of: Callable[[int], Forward]
    ) -> None:
        """Capture `forward_of(size)` for each size, the largest first, as in Graphs."""
        order = sorted(sizes, reverse=True)
        for size in with_progress(order, "capturing graphs of short prompts"):
            self._pieces[size] = self._captured(recorder, size, forward_of(size))

    def fitting_size(self, tokens: int) -> int | None:
        """The smallest captured size with room for `tokens`; None if there are too many."""
        return next((size for size in self.sizes if size >= tokens), None)

    def replay(self, size: int, batch: Attending) -> Tensor:
        """Run a batch whose numbers are staged for `size` tokens; [size, hidden]."""
        self._pieces[size].run(batch)
        return self.hidden[:size]

    def _captured(self, recorder: Recorder, size: int, forward: Forward) -> _Pieces:
        calls: Sequence[Call] = ()

        def work(cut: Cut) -> None:
            nonlocal calls
            hidden, calls = forward(cut)
            self.hidden[:size].copy_(hidden)

        replays = recorder.record_pieces(work)
        return _Pieces(replays, calls)
