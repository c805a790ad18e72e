"""Which steps are replayed as a graph, and of what size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.running.graphs import Graphs, Step, fitting_size, graph_sizes
from engine.running.runner import ForwardOutput
from tests.fakes.device import TapeRecorder


def test_sizes_are_close_where_padding_would_be_dear() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(8) == [1, 2, 4, 8]
    assert graph_sizes(30) == [1, 2, 4, 8, 16, 24, 30]


@given(st.integers(1, 300), st.integers(1, 300))
def test_every_batch_of_single_tokens_has_a_graph_that_is_little_larger(
    most: int, count: int
) -> None:
    fits = fitting_size(graph_sizes(most), count, 0)
    if count > most:
        assert fits is None
    else:
        assert fits is not None
        assert count <= fits <= count + 7


def test_chunks_and_drafts_are_run_without_a_graph() -> None:
    assert fitting_size([1, 2, 4], 2, 1) is None
    assert fitting_size([1, 2, 4], 0, 0) is None
    assert fitting_size([], 1, 0) is None


def test_the_largest_is_captured_first_and_each_answers_for_its_rows() -> None:
    order, source = list[int](), torch.arange(8.0)
    outputs = ForwardOutput(torch.zeros(4, 2), torch.zeros(4, 3))
    graphs, recorder = Graphs(outputs), TapeRecorder()

    def step_of(size: int) -> Step:
        order.append(size)

        def step() -> ForwardOutput:
            doubled = source[:size, None] * 2
            return ForwardOutput(doubled.expand(size, 2), doubled.expand(size, 3))

        return step

    graphs.capture(recorder, [1, 2, 4], step_of)
    assert order == [4, 2, 1]
    source.add_(10)
    hidden, logits, *_ = graphs.replay(2, 2)
    assert hidden.tolist() == [[20, 20], [22, 22]]
    assert logits is not None
    assert logits.shape == (2, 3)
    padded = graphs.replay(4, 3)
    assert padded.hidden.tolist() == [[20, 20], [22, 22], [24, 24]]
    assert padded.logits is not None
    assert padded.logits.shape == (3, 3)


def test_a_step_that_asks_the_device_cannot_be_captured() -> None:
    def ask() -> None:
        torch.ones(1).add(1).item()

    with pytest.raises(AssertionError, match="waits for the device"):
        TapeRecorder().record(ask)


def test_what_is_captured_are_the_tensors_of_then() -> None:
    """The stand-in for a CUDA graph sees where a batch's tensors are allocated anew."""
    tokens, out = torch.arange(3), torch.zeros(3, dtype=torch.int64)

    def work() -> None:
        out.copy_(tokens + 1)

    replay, first = TapeRecorder().record(work), tokens
    first += 10
    replay()
    assert out.tolist() == [11, 12, 13]
    tokens = torch.zeros(3, dtype=torch.int64)
    replay()
    assert out.tolist() == [11, 12, 13]
