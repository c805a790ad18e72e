"""Gated delta nets on a device, beside plain torch's: by one token, and by chunks."""

from dataclasses import replace

import pytest
import torch

from engine.kernels.delta_net import DeltaWeights
from engine.kernels.gpu.delta_net_chunks import delta_net_chunks
from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.recurrent_call import fits_kernels
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.recurrent import RecurrentShape
from tests.kernels.attention_cases import distance
from tests.kernels.recurrent_cases import FLOATS, SHAPES, TOLERANCE, check, make_case

KERNELS = [TorchKernels, TritonKernels]
STARTS, ONES = (7, 0, 3, 0, 1), (1, 1, 1, 0, 1)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_step(
    shape: RecurrentShape, dtype: torch.dtype, kernels: type[TorchKernels], device: torch.device
) -> None:
    """Of sequences that go on, of some that begin, and of padding."""
    case = make_case(shape, STARTS, ONES, dtype, device)
    check(case, kernels(), chunks=False)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_chunks(
    shape: RecurrentShape, dtype: torch.dtype, kernels: type[TorchKernels], device: torch.device
) -> None:
    """Shorter than the convolution and longer than a piece, with padding in every place."""
    starts, counts = (4, 0, 0, 0, 9, 2, 0), (1, 2, 0, 71, 64, 33, 0)
    case = make_case(shape, starts, counts, dtype, device, spare=5)
    check(case, kernels(), chunks=True)


@pytest.mark.parametrize("piece", [16, 32, 64])
def test_pieces_of_any_size(piece: int, device: torch.device) -> None:
    case = make_case(SHAPES["shared keys"], (5, 0), (70, 33), torch.float32, device)
    right = case.copied()
    assert isinstance(case.weights, DeltaWeights)
    given = case.inputs, case.states, case.contexts, case.chunks, case.weights
    answer = delta_net_chunks(*given, piece=piece)
    expected = right.right(chunks=True).double().cpu()
    assert distance(answer, expected) < TOLERANCE[torch.float32]


def test_alike_keys_which_powers_of_their_products_would_not_survive(
    device: torch.device,
) -> None:
    """All tokens are one, which is learned at once and hardly forgotten."""
    case = make_case(SHAPES["each its key"], (5,), (64,), torch.float32, device)
    mixed, rates = case.inputs
    mixed[:], rates[:] = mixed[:1].clone(), 9.0
    assert isinstance(case.weights, DeltaWeights)
    case = replace(case, weights=replace(case.weights, decay=case.weights.decay * 1e-3))
    right = case.copied()
    assert isinstance(case.weights, DeltaWeights)
    given = case.inputs, case.states, case.contexts, case.chunks, case.weights
    answer = delta_net_chunks(*given, piece=64)
    expected = right.right(chunks=True).double().cpu()
    assert distance(answer, expected) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("chunks", [False, True])
def test_heads_of_odd_widths_have_no_kernel(chunks: bool, device: torch.device) -> None:
    shape = RecurrentShape(1, 2, 12, 20, 3)
    assert not fits_kernels(shape)
    case = make_case(shape, (3, 0), (1, 1), torch.float32, device)
    check(case, TritonKernels(), chunks=chunks)


@pytest.mark.parametrize("kernels", KERNELS)
def test_nothing_but_padding(kernels: type[TorchKernels], device: torch.device) -> None:
    case = make_case(SHAPES["shared keys"], (1, 1), (1, 1), torch.float32, device)
    nobody = [replace(span, start=0, length=0) for span in case.spans]
    case = replace(case, spans=nobody, tables=torch.full_like(case.tables, 1 << 30))
    before = case.copied()
    for chunks in (False, True):
        answer = case.answer(kernels(), chunks=chunks)
        assert torch.equal(answer, torch.zeros_like(answer))
    for one, other in zip(case.states[:2], before.states[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_what_does_not_fit_is_named(device: torch.device) -> None:
    case = make_case(SHAPES["shared keys"], (1, 1), (1, 1), torch.float32, device)
    (mixed, rates), (memory, inputs, place) = case.inputs, case.states
    weights, kernels = case.weights, TritonKernels()
    assert isinstance(weights, DeltaWeights)
    wrong = {
        "mixed": replace(case, inputs=case.inputs._replace(mixed=mixed[:, :-1])),
        "rates": replace(case, inputs=case.inputs._replace(rates=rates[:1])),
        "memory": replace(case, states=case.states._replace(memory=memory[:, :1])),
        "inputs": replace(case, states=case.states._replace(inputs=inputs.bfloat16())),
        "place 3": replace(case, states=case.states._replace(place=place + 2)),
        "tables": replace(case, tables=case.tables.long()),
        "norm": replace(case, weights=replace(weights, norm=weights.norm[:-1])),
        "convolution": replace(
            case, weights=replace(weights, convolution=weights.convolution.T)
        ),
    }
    for name, one in wrong.items():
        for chunks in (False, True):
            with pytest.raises(ValueError, match=name):
                one.answer(kernels, chunks=chunks)
