"""Mamba-2 layers on a device, beside plain torch's: by one token, and by chunks."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.mamba import mamba_step
from engine.kernels.gpu.mamba_chunks import mamba_chunks
from engine.kernels.gpu.recurrent_call import fits_kernels
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape
from tests.kernels.attention_cases import distance
from tests.kernels.recurrent_cases import (
    FLOATS,
    TOLERANCE,
    Case,
    check,
    check_states,
    make_case,
    mamba_weights,
)

KERNELS = [TorchKernels, TritonKernels]
STARTS, ONES = (7, 0, 3, 0, 1), (1, 1, 1, 0, 1)
SHAPES = {
    "one key head, no norm": (RecurrentShape(1, 4, 16, 16, 3), 0),
    "one key head, one group": (RecurrentShape(1, 3, 32, 16, 3), 1),
    "several of each": (RecurrentShape(2, 4, 16, 64, 3), 2),
    "groups of parts of heads": (RecurrentShape(2, 2, 16, 32, 1), 4),
    "long convolution": (RecurrentShape(1, 2, 64, 16, 4), 2),
    "wide keys, no norm": (RecurrentShape(1, 2, 256, 64, 3), 0),
}
REAL = {
    "Nemotron-3-Nano-30B-A3B": (RecurrentShape(8, 64, 128, 64, 3), 8),
    "Granite-4.0-H-Small": (RecurrentShape(1, 128, 128, 64, 3), 1),
    "Falcon-H1-34B": (RecurrentShape(2, 32, 256, 128, 3), 0),
}
ODD, SEVERAL = RecurrentShape(1, 2, 12, 20, 3), SHAPES["several of each"][0]


def mamba_case(
    shape: RecurrentShape,
    spans: tuple[Sequence[int], Sequence[int]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    groups: int = 1,
    spare: int = 0,
) -> Case:
    """Sequences that have computed `spans[0]` tokens, and compute `spans[1]` more."""
    net = partial(mamba_weights, groups=groups)
    return make_case(shape, *spans, dtype, device, spare=spare, net=net)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "groups"), SHAPES.values(), ids=SHAPES)
def test_a_step(
    shape: RecurrentShape,
    groups: int,
    dtype: torch.dtype,
    kernels: type[TorchKernels],
    device: torch.device,
) -> None:
    """Of sequences that go on, of some that begin, and of padding."""
    case = mamba_case(shape, (STARTS, ONES), dtype, device, groups=groups)
    check(case, kernels(), chunks=False)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "groups"), SHAPES.values(), ids=SHAPES)
def test_chunks(
    shape: RecurrentShape,
    groups: int,
    dtype: torch.dtype,
    kernels: type[TorchKernels],
    device: torch.device,
) -> None:
    """Shorter than the convolution and longer than a piece, with padding in every place."""
    spans = (4, 0, 0, 0, 9, 2, 0), (1, 2, 0, 71, 64, 33, 0)
    case = mamba_case(shape, spans, dtype, device, groups=groups, spare=5)
    check(case, kernels(), chunks=True)


@pytest.mark.gpu
@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "groups"), REAL.values(), ids=REAL)
def test_sizes_of_models(
    shape: RecurrentShape, groups: int, dtype: torch.dtype, chunks: bool, device: torch.device
) -> None:
    spans = ((9, 0, 40), (130, 64, 1)) if chunks else (STARTS, ONES)
    case = mamba_case(shape, spans, dtype, device, groups=groups, spare=5 * chunks)
    check(case, TritonKernels(), chunks=chunks)


@pytest.mark.parametrize("piece", [16, 32, 64])
def test_pieces_of_any_size(piece: int, device: torch.device) -> None:
    case = mamba_case(SEVERAL, ((5, 0), (70, 33)), torch.float32, device)
    right = case.copied()
    assert isinstance(case.weights, MambaWeights)
    given = case.inputs, case.states, case.contexts, case.chunks, case.weights
    answer = mamba_chunks(*given, piece=piece)
    expected = right.right(chunks=True).double().cpu()
    assert distance(answer, expected) < TOLERANCE[torch.float32]
    check_states(case, right)


@pytest.mark.parametrize("cut", [2, 64])
def test_a_prompt_in_two_chunks_is_one_in_a_whole(cut: int, device: torch.device) -> None:
    """The second one goes on where the first ended, in the state and in its last inputs."""
    whole = mamba_case(SEVERAL, ((3,), (70,)), torch.float32, device)
    ours = whole.copied()
    expected = whole.answer(TritonKernels(), chunks=True)
    both = ours.part(0, cut), ours.part(cut, 70)
    parts = [part.answer(TritonKernels(), chunks=True) for part in both]
    assert distance(torch.cat(parts), expected.double().cpu()) < TOLERANCE[torch.float32]
    check_states(ours, whole)


def test_steps_go_on_behind_a_chunk(device: torch.device) -> None:
    whole = mamba_case(SEVERAL, ((0,), (20,)), torch.float32, device)
    ours = whole.copied()
    expected = whole.answer(TritonKernels(), chunks=True)
    for at in range(20):
        answer = ours.part(at, at + 1).answer(TritonKernels(), chunks=False)
        assert distance(answer, expected[at : at + 1].double().cpu()) < 1e-4
    check_states(ours, whole)


@pytest.mark.parametrize("chunks", [False, True])
def test_a_state_that_fades_at_once_is_no_nan(chunks: bool, device: torch.device) -> None:
    """Of as strong decays as no exponential of a difference the other way round could hold."""
    counts = (70, 1) if chunks else (1, 1)
    case = mamba_case(SEVERAL, ((3, 2), counts), torch.float32, device)
    assert isinstance(case.weights, MambaWeights)
    case.inputs.rates.fill_(30.0)
    case = replace(case, weights=replace(case.weights, decay=case.weights.decay * 40))
    check(case, TritonKernels(), chunks=chunks)


@pytest.mark.parametrize("chunks", [False, True])
def test_heads_of_odd_widths_have_no_kernel(chunks: bool, device: torch.device) -> None:
    assert not fits_kernels(ODD)
    case = mamba_case(ODD, ((3, 0), (1, 1)), torch.float32, device)
    check(case, TritonKernels(), chunks=chunks)


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("kernels", KERNELS)
def test_nothing_but_padding(
    kernels: type[TorchKernels], groups: int, device: torch.device
) -> None:
    case = mamba_case(SEVERAL, ((1, 1), (1, 1)), torch.float32, device, groups=groups)
    nobody = [replace(span, start=0, length=0) for span in case.spans]
    case = replace(case, spans=nobody, tables=torch.full_like(case.tables, 1 << 30))
    before = case.copied()
    for chunks in (False, True):
        answer = case.answer(kernels(), chunks=chunks)
        assert torch.equal(answer, torch.zeros_like(answer))
    for one, other in zip(case.states[:2], before.states[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("chunks", [False, True])
def test_what_does_not_fit_is_named(chunks: bool, device: torch.device) -> None:
    case = mamba_case(SEVERAL, ((1, 1), (1, 1)), torch.float32, device)
    weights, (memory, _, place) = case.weights, case.states
    assert isinstance(weights, MambaWeights)
    assert weights.norm is not None
    mixed, rates = case.inputs
    wrong = {
        "rates": replace(case, inputs=RecurrentInputs(mixed, torch.cat((rates, rates), 1))),
        "memory": replace(case, states=case.states._replace(memory=memory[:, :1])),
        "place 3": replace(case, states=case.states._replace(place=place + 2)),
        "bias": replace(case, weights=replace(weights, bias=weights.bias[:-1])),
        "skip": replace(case, weights=replace(weights, skip=weights.skip[:1])),
        "norm ": replace(case, weights=replace(weights, norm=weights.norm[:-1])),
        "norm_groups": replace(case, weights=replace(weights, norm_groups=5)),
    }
    for name, one in wrong.items():
        with pytest.raises(ValueError, match=name):
            one.answer(TritonKernels(), chunks=chunks)


def test_a_row_without_a_table_is_named(device: torch.device) -> None:
    case = mamba_case(SEVERAL, ((1, 1), (1, 1)), torch.float32, device, spare=1)
    assert isinstance(case.weights, MambaWeights)
    with pytest.raises(ValueError, match="2 tables for 3 tokens"):
        mamba_step(case.inputs, case.states, case.contexts, case.weights)
