"""Steps of few tokens: what is captured, in which pieces, and what is launched in between."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.style import AttentionStyle
from engine.running.piecewise import (
    SIZES,
    AttentionCall,
    Forward,
    PiecewiseGraphs,
    piece_sizes,
)
from engine.running.recorder import Cut
from engine.running.staging import BatchSize, layout
from tests.fakes.device import TapeRecorder

STYLE = AttentionStyle(1.0)
HIDDEN = 3


class TenTimes:
    """An attention that is easy to follow; it notes its layers."""

    def __init__(self) -> None:
        self.layers = list[int]()

    def attend_into(self, layer: int, _: AttentionStyle, queries: Tensor, read: Tensor) -> None:
        self.layers.append(layer)
        read.copy_(queries * 10)


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
