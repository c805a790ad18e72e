"""Gated short convolutions on a device, beside plain torch's: by one token, and by chunks."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.short_convolution import convolution_step
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape
from engine.kernels.short_convolution import ConvolutionWeights
from tests.kernels.recurrent_cases import (
    FLOATS,
    Case,
    check,
    check_states,
    convolution_weights,
    make_case,
)

KERNELS = [TorchKernels, TritonKernels]
STARTS, ONES = (7, 0, 3, 0, 1), (1, 1, 1, 0, 1)


def shape_of(channels: int, taps: int) -> RecurrentShape:
    return RecurrentShape(channels, channels, 0, 1, taps)


SHAPES = {
    "two tokens before": (shape_of(64, 2), False),
    "one token before, a bias": (shape_of(300, 1), True),
    "odd channels": (shape_of(37, 3), False),
    "long": (shape_of(20, 17), True),
}
PUBLISHED, ODD = shape_of(2048, 2), SHAPES["odd channels"][0]  # LFM2 1.2B and 8B A1B


def case_of(
    shape: RecurrentShape,
    spans: tuple[Sequence[int], Sequence[int]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    bias: bool = False,
    spare: int = 0,
) -> Case:
    """Sequences that have computed `spans[0]` tokens, and compute `spans[1]` more."""
    net = partial(convolution_weights, bias=bias)
    return make_case(shape, *spans, dtype, device, spare=spare, net=net)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_like_plain_torch(
    name: str,
    dtype: torch.dtype,
    chunks: bool,
    kernels: type[TorchKernels],
    device: torch.device,
) -> None:
    """A step of sequences that go on, of some that begin, and of padding; or chunks shorter
    than the convolution and longer than a piece, with padding in every place.
    """
    shape, bias = SHAPES[name]
    spans = ((4, 0, 0, 0, 9, 2, 0), (1, 2, 0, 41, 32, 17, 0)) if chunks else (STARTS, ONES)
    case = case_of(shape, spans, dtype, device, bias=bias, spare=21 * chunks)
    check(case, kernels(), chunks=chunks)


@pytest.mark.gpu
@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sizes_of_models(dtype: torch.dtype, chunks: bool, device: torch.device) -> None:
    spans = ((9, 0, 40), (130, 64, 1)) if chunks else (STARTS, ONES)
    case = case_of(PUBLISHED, spans, dtype, device, spare=5 * chunks)
    check(case, TritonKernels(), chunks=chunks)


@pytest.mark.parametrize("cut", [1, 2, 16, 20])
def test_a_prompt_in_two_chunks_is_one_in_a_whole(cut: int, device: torch.device) -> None:
    """To the bit: the second one goes on with what entered the first last."""
    whole = case_of(ODD, ((3,), (40,)), torch.float32, device)
    ours = whole.copied()
    expected = whole.answer(TritonKernels(), chunks=True)
    both = ours.part(0, cut), ours.part(cut, 40)
    parts = [part.answer(TritonKernels(), chunks=True) for part in both]
    assert torch.equal(torch.cat(parts), expected)
    check_states(ours, whole)


def test_steps_go_on_behind_a_chunk(device: torch.device) -> None:
    whole = case_of(ODD, ((0,), (9,)), torch.float32, device)
    ours = whole.copied()
    expected = whole.answer(TritonKernels(), chunks=True)
    for at in range(9):
        answer = ours.part(at, at + 1).answer(TritonKernels(), chunks=False)
        torch.testing.assert_close(answer, expected[at : at + 1])
    check_states(ours, whole)


@pytest.mark.parametrize("kernels", KERNELS)
def test_nothing_but_padding(kernels: type[TorchKernels], device: torch.device) -> None:
    case = case_of(ODD, ((1, 1), (1, 1)), torch.float32, device)
    nobody = [replace(span, start=0, length=0) for span in case.spans]
    case = replace(case, spans=nobody, tables=torch.full_like(case.tables, 1 << 30))
    before = case.copied()
    for chunks in (False, True):
        answer = case.answer(kernels(), chunks=chunks)
        assert torch.equal(answer, torch.zeros_like(answer))
    ours, theirs = case.states.inputs, before.states.inputs
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("chunks", [False, True])
def test_what_does_not_fit_is_named(chunks: bool, device: torch.device) -> None:
    case = case_of(ODD, ((1, 1), (1, 1)), torch.float32, device, bias=True)
    weights, (_, inputs, place) = case.weights, case.states
    assert isinstance(weights, ConvolutionWeights)
    assert weights.bias is not None
    mixed, rates = case.inputs
    short = replace(weights, convolution=weights.convolution[:, 1:].contiguous())
    wrong = {
        "rates": replace(case, inputs=RecurrentInputs(mixed, rates[:, 1:])),
        "inputs of states": replace(case, states=case.states._replace(inputs=inputs[:, :1])),
        "place 3": replace(case, states=case.states._replace(place=place + 2)),
        "bias": replace(case, weights=replace(weights, bias=weights.bias[:-1])),
        "convolution": replace(case, weights=short),
    }
    for name, one in wrong.items():
        with pytest.raises(ValueError, match=name):
            one.answer(TritonKernels(), chunks=chunks)


def test_a_row_without_a_table_is_named(device: torch.device) -> None:
    case = case_of(ODD, ((1, 1), (1, 1)), torch.float32, device, spare=1)
    assert isinstance(case.weights, ConvolutionWeights)
    with pytest.raises(ValueError, match="2 tables for 3 tokens"):
        convolution_step(case.inputs, case.states, case.contexts, case.weights)
