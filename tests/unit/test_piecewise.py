"""Steps of few tokens: what is captured, in which pieces, and what is launched in between."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.delta_net import DeltaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape, RecurrentWeights
from engine.kernels.style import AttentionStyle
from engine.running.piecewise import (
    SIZES,
    AttentionCall,
    CutBatch,
    Forward,
    PiecewiseGraphs,
    RecurrentCall,
    piece_sizes,
)
from engine.running.recorder import Cut
from engine.running.staging import BatchSize, layout
from tests.fakes.device import TapeRecorder

STYLE = AttentionStyle(1.0)
HIDDEN = 3
NOTHING = torch.empty(0)
WEIGHTS = DeltaWeights(
    RecurrentShape(1, 1, 2, 4, 3), NOTHING[None], NOTHING, NOTHING, NOTHING, 1e-6
)


class TenTimes:
    """An attention that is easy to follow; it notes its layers."""

    def __init__(self) -> None:
        self.layers = list[int]()

    def attend_into(self, layer: int, _: AttentionStyle, queries: Tensor, read: Tensor) -> None:
        self.layers.append(layer)
        read.copy_(queries * 10)

    def recurrence_into(
        self, layer: int, weights: RecurrentWeights, inputs: RecurrentInputs, read: Tensor
    ) -> None:
        assert weights is WEIGHTS
        self.layers.append(layer)
        read.copy_(inputs.mixed * inputs.rates)


class Lending(TapeRecorder):
    """What it lends are tensors of their own over the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.lent = list[Tensor]()

    def lend(self, tensor: Tensor) -> Tensor:
        self.lent.append(tensor.view_as(tensor))
        return self.lent[-1]


class TenTimesCut(CutBatch):
    """Attends as TenTimes does, over no KV."""

    def room_for(self, queries: Tensor) -> Tensor:
        return torch.full_like(queries, torch.nan)

    def attend_into(
        self, layer: int, style: AttentionStyle, queries: Tensor, read: Tensor
    ) -> None:
        TenTimes().attend_into(layer, style, queries, read)

    def recurrence_into(
        self, layer: int, weights: RecurrentWeights, inputs: RecurrentInputs, read: Tensor
    ) -> None:
        TenTimes().recurrence_into(layer, weights, inputs, read)


def captured(source: Tensor, sizes: Sequence[int]) -> tuple[PiecewiseGraphs, TapeRecorder]:
    """Graphs of (source + 1) * 10 + 2, * 10 + 3: two attentions, three pieces."""

    def forward_of(size: int) -> Forward:
        def forward(cut: Cut) -> tuple[Tensor, Sequence[AttentionCall]]:
            hidden, calls = source[:size] + 1, list[AttentionCall]()
            for layer in range(2):
                read = torch.full_like(hidden, torch.nan)
                calls.append(AttentionCall(layer, STYLE, hidden, read))
                cut(lambda: None)
                hidden = read + 2 + layer
            return hidden, calls

        return forward

    graphs, recorder = PiecewiseGraphs(torch.zeros(max(sizes), HIDDEN)), TapeRecorder()
    graphs.capture(recorder, sizes, forward_of)
    return graphs, recorder


def test_attention_is_launched_between_pieces_over_what_lies_there_by_then() -> None:
    source, attention = torch.zeros(8, HIDDEN), TenTimes()
    graphs, recorder = captured(source, [4, 8])
    for size, value in ((4, 1.0), (8, 2.0), (4, 5.0)):
        source.fill_(value)
        made = graphs.replay(size, attention)
        assert made.shape == (size, HIDDEN)
        assert (made == ((value + 1) * 10 + 2) * 10 + 3).all()
    assert attention.layers == [0, 1] * 3
    assert recorder.captured_in_pieces == 2
    assert recorder.replayed_pieces == 3 * 3


def test_what_an_attention_reads_and_writes_is_lent_and_it_is_launched_for_a_warm_up() -> None:
    nothing, recorder, queries = cast("Any", None), Lending(), torch.ones(4, HIDDEN)
    batch = TenTimesCut(
        nothing, nothing, nothing, 0, 4, recorder=recorder, cut=lambda between: between()
    )
    read = batch.attend(3, STYLE, queries)
    assert (read == 10).all()
    (call,) = batch.calls
    assert isinstance(call, AttentionCall)
    assert (call.layer, call.style) == (3, STYLE)
    lent_queries, lent_read = recorder.lent
    assert call.queries is lent_queries
    assert call.read is lent_read
    assert [one.data_ptr() for one in recorder.lent] == [queries.data_ptr(), read.data_ptr()]


def test_layers_that_keep_a_state_are_cut_out_likewise() -> None:
    nothing, recorder = cast("Any", None), Lending()
    inputs = RecurrentInputs(torch.ones(3, 4), torch.full((3, 1), 7.0))
    batch = TenTimesCut(
        nothing, nothing, nothing, 0, 3, recorder=recorder, cut=lambda between: between()
    )
    read = batch.recurrence(5, WEIGHTS, inputs)
    assert (read == 7).all()
    (call,) = batch.calls
    assert isinstance(call, RecurrentCall)
    for one, other in zip(recorder.lent, (*call.inputs, call.read), strict=True):
        assert one is other
    assert [one.data_ptr() for one in recorder.lent] == [
        one.data_ptr() for one in (*inputs, read)
    ]
    inputs.mixed.fill_(2)
    attention = TenTimes()
    call.launch(attention)
    assert (read == 14).all()
    assert attention.layers == [5]


def test_the_largest_is_captured_first() -> None:
    """So that the others have room in its memory."""
    graphs, _ = captured(torch.zeros(8, HIDDEN), [4, 8, 2])
    assert list(graphs._pieces) == [8, 4, 2]


def test_a_batch_takes_the_smallest_that_has_room() -> None:
    graphs, _ = captured(torch.zeros(8, HIDDEN), [8, 2, 4])
    assert graphs.sizes == [2, 4, 8]
    fitting = [graphs.fitting_size(tokens) for tokens in (1, 2, 3, 8, 9)]
    assert fitting == [2, 2, 4, 8, None]


@pytest.mark.parametrize("most", [1, 3, 48, 512, 513, 8192])
def test_the_largest_batch_has_pieces_unless_it_keeps_the_device_busy(most: int) -> None:
    sizes = piece_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(most, SIZES[-1])


@given(st.integers(1, SIZES[-1]))
def test_a_batch_is_padded_by_little(tokens: int) -> None:
    size = next(size for size in piece_sizes(8192) if size >= tokens)
    assert size - tokens < max(8, 0.5 * tokens)
    assert tokens <= 128 or size - tokens < 0.25 * tokens


@given(
    st.integers(1, 600),
    st.tuples(st.integers(1, 300), st.integers(1, 100)),
    st.tuples(st.integers(1, 300), st.integers(1, 100)),
)
def test_what_pieces_read_lies_where_the_number_of_tokens_says(
    tokens: int, one: tuple[int, int], other: tuple[int, int]
) -> None:
    """However many sequences there are, and however long their tables."""
    first, second = layout(BatchSize(tokens, *one)), layout(BatchSize(tokens, *other))
    for name in ("tokens", "positions", "sources", "slots"):
        assert getattr(first, name) == getattr(second, name)
