"""What a layer does between its products, compiled and in plain torch, is the same."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.kv_memory import KvMemory, KvShape
from engine.kernels.cpu.native import GATES, Kernels
from engine.models.mlp import ACTIVATIONS
from engine.models.norm import Norm
from engine.models.rope import rotate

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 0.01, torch.float16: 2e-3}
TOKENS = (1, 300)  # the second is worth more than one thread


def close(ours: Tensor, exact: Tensor) -> bool:
    assert (ours.dtype in TOLERANCE, ours.shape) == (True, exact.shape)
    error = (ours.double() - exact).abs().max() / exact.abs().max()
    return bool(error < TOLERANCE[ours.dtype])


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [8, 100, 896])
def test_norms(kernels: Kernels, size: int, dtype: torch.dtype, tokens: int) -> None:
    inputs = torch.randn(tokens, size).to(dtype)
    for weight in (torch.randn(size).to(dtype), torch.randn(size)):
        ours = Norm(weight, 1e-3, kernels)(inputs)
        exact = F.rms_norm(inputs.double(), (size,), weight.double(), 1e-3)
        assert close(ours, exact)


def test_norms_over_heads_that_lie_among_others(kernels: Kernels) -> None:
    mixed, weight = torch.randn(40, 9, 24), torch.randn(24)
    keys = mixed[:, 5:7]
    exact = F.rms_norm(keys.double(), (24,), weight.double(), 1e-3)
    assert close(Norm(weight, 1e-3, kernels)(keys), exact)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [5, 688])
@pytest.mark.parametrize("name", GATES)
def test_gates(kernels: Kernels, name: str, size: int, dtype: torch.dtype, tokens: int) -> None:
    both = (3 * torch.randn(tokens, 2 * size)).to(dtype)
    both[0, 0], both[-1, 1] = -200, 200
    gate, up = both.double().chunk(2, -1)
    assert close(kernels.gated(both, name), ACTIVATIONS[name](gate) * up)


@pytest.mark.parametrize("name", GATES)
def test_gates_of_what_is_hardly_a_number(kernels: Kernels, name: str) -> None:
    gate = torch.tensor(
        [[3e38, -3e38, 1e9, -1e9, 95.0, -95.0, torch.nan, torch.inf, -torch.inf]]
    )
    ours = kernels.gated(torch.cat((gate, torch.ones_like(gate)), -1), name)
    torch.testing.assert_close(ours, ACTIVATIONS[name](gate), equal_nan=True)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [2, 24, 128])
def test_turns(kernels: Kernels, width: int, dtype: torch.dtype, tokens: int) -> None:
    """In place, and what lies beside is left alone."""
    mixed = torch.randn(tokens, 7, width).to(dtype)
    table = torch.randn(tokens, 2, width).to(dtype)
    cos, sin = table.unsqueeze(2).unbind(1)
    exact = rotate(mixed[:, :5].double(), cos.double(), sin.double())
    rest = mixed[:, 5:].clone()
    kernels.turn(mixed[:, :5], cos, sin)
    assert close(mixed[:, :5], exact)
    assert torch.equal(mixed[:, 5:], rest)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_what_is_written_is_where_torch_writes_it(kernels: Kernels, dtype: torch.dtype) -> None:
    cpu, shape = torch.device("cpu"), KvShape(2, 3, 24)
    ours, twin = (KvMemory(shape, 5, 7, dtype, cpu, one) for one in (kernels, None))
    slots = torch.stack((torch.tensor([30, 4, 11]), torch.tensor([95, 2, 1])))
    mixed = torch.randn(1, 9, 24).to(dtype)
    for memory in (ours, twin):
        memory.write(1, slots, mixed[:, 3:6], mixed[:, 6:])
    assert torch.equal(ours.token_rows, twin.token_rows)
    assert ours.token_rows.any()
