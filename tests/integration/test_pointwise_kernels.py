"""What a layer does between its products, compiled and in plain torch, is the same."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.attention.rotation import Rotation
from engine.kernels.cpu.native import GATES, CpuKernels
from engine.kernels.gating import squared_relu
from engine.models.mlp import ACTIVATIONS
from engine.models.norm import Norm

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 0.01, torch.float16: 2e-3}
TOKENS = (1, 300)  # the second is worth more than one thread


def close(ours: Tensor, exact: Tensor) -> bool:
    assert (ours.dtype in TOLERANCE, ours.shape) == (True, exact.shape)
    error = (ours.double() - exact).abs().max() / exact.abs().max()
    return bool(error < TOLERANCE[ours.dtype])


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [8, 100, 896])
def test_norms(kernels: CpuKernels, size: int, dtype: torch.dtype, tokens: int) -> None:
    inputs = torch.randn(tokens, size).to(dtype)
    for weight in (torch.randn(size).to(dtype), torch.randn(size)):
        ours = Norm(weight, 1e-3, kernels)(inputs)
        exact = F.rms_norm(inputs.double(), (size,), weight.double(), 1e-3)
        assert close(ours, exact)


@pytest.mark.parametrize("scale", [1.0, 0.22])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [8, 100, 896])
def test_a_residual_is_added_rounded_and_normed(
    kernels: CpuKernels, size: int, dtype: torch.dtype, tokens: int, scale: float
) -> None:
    inputs = torch.randn(tokens, 2 * size).to(dtype)[:, :size]
    residual = torch.randn(tokens, size).to(dtype)
    for weight in (torch.randn(size).to(dtype), torch.randn(size)):
        ours, added = Norm(weight, 1e-3, kernels).add(inputs, residual, scale)
        exact = residual.double() + scale * inputs.double()
        assert close(added, exact)
        assert close(ours, F.rms_norm(added.double(), (size,), weight.double(), 1e-3))
        assert torch.equal(ours, Norm(weight, 1e-3, kernels)(added))


def test_norms_over_heads_that_lie_among_others(kernels: CpuKernels) -> None:
    mixed, weight = torch.randn(40, 9, 24), torch.randn(24)
    keys = mixed[:, 5:7]
    exact = F.rms_norm(keys.double(), (24,), weight.double(), 1e-3)
    assert close(Norm(weight, 1e-3, kernels)(keys), exact)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [5, 688])
@pytest.mark.parametrize("name", GATES)
def test_gates(
    kernels: CpuKernels, name: str, size: int, dtype: torch.dtype, tokens: int
) -> None:
    both = (3 * torch.randn(tokens, 2 * size)).to(dtype)
    both[0, 0], both[-1, 1] = -200, 200
    gate, up = both.double().chunk(2, -1)
    assert close(kernels.gated(both, name), ACTIVATIONS[name](gate) * up)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [5, 688])
def test_gates_between_other_numbers(
    kernels: CpuKernels, size: int, dtype: torch.dtype, tokens: int
) -> None:
    mixed, rows = (3 * torch.randn(tokens, 3 * size)).to(dtype), torch.randn(tokens, size)
    gates, rows = mixed[:, size : 2 * size], rows.to(dtype)
    gates[0, 0], gates[-1, 1] = -200, 200
    exact = rows.double() * gates.double().sigmoid()
    assert close(kernels.sigmoid_gated(rows, gates), exact)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [5, 688])
def test_squares_of_what_is_positive(
    kernels: CpuKernels, size: int, dtype: torch.dtype, tokens: int
) -> None:
    rows = (3 * torch.randn(tokens, 2 * size)).to(dtype)[:, :size]
    ours, calls = kernels.record(partial(kernels.squared_relu, rows))
    assert close(ours, squared_relu(rows.double()))
    assert not isinstance(calls, str), "can be replayed"
    odd = torch.tensor([[2e19, 0.0, -0.0, -3e38, torch.nan, torch.inf, -torch.inf]])
    ours = kernels.squared_relu(odd)
    torch.testing.assert_close(ours, squared_relu(odd), equal_nan=True)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [5, 688])
def test_sums(kernels: CpuKernels, size: int, dtype: torch.dtype, tokens: int) -> None:
    rows, others = (3 * torch.randn(2, tokens, 2 * size)).to(dtype)[..., :size]
    ours, calls = kernels.record(partial(kernels.added, rows, others))
    assert torch.equal(ours, rows + others)
    assert not isinstance(calls, str), "can be replayed"


@pytest.mark.parametrize("name", GATES)
def test_gates_of_what_is_hardly_a_number(kernels: CpuKernels, name: str) -> None:
    gate = torch.tensor(
        [[3e38, -3e38, 1e9, -1e9, 95.0, -95.0, torch.nan, torch.inf, -torch.inf]]
    )
    ours = kernels.gated(torch.cat((gate, torch.ones_like(gate)), -1), name)
    torch.testing.assert_close(ours, ACTIVATIONS[name](gate), equal_nan=True)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [2, 24, 128])
def test_turns(kernels: CpuKernels, width: int, dtype: torch.dtype, tokens: int) -> None:
    """In place, wherever they lie, and what lies beside is left alone."""
    table = torch.randn(tokens, 2, width).to(dtype)
    exactly = Rotation(table.double(), torch.arange(tokens))
    cpu, shape = torch.device("cpu"), KvShape(1, 2, width)
    for apart in (False, True):
        mixed = torch.randn(tokens, 7, width).to(dtype)
        queries, keys, values = mixed.split((3, 2, 2), 1)
        if apart:
            queries, keys = queries.clone(), keys.clone()
        exact = [exactly.turn(heads.double()) for heads in (queries, keys)]
        memory, rest = KvMemory(shape, tokens, 1, dtype, cpu, kernels), values.clone()
        batch = AttentionBatch(memory, [], [Span(0, tokens, range(tokens))])
        turned = batch.turn_and_write(
            0, (queries, keys, values), Rotation(table, batch.positions)
        )
        assert close(turned, exact[0])
        kept = memory.blocks[:, 0, ..., 0, :]  # [tokens, part, kv_head, width]
        assert close(kept[:, 0], exact[1])
        assert torch.equal(kept[:, 1], rest)
        assert torch.equal(values, rest)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_what_is_written_is_where_torch_writes_it(
    kernels: CpuKernels, dtype: torch.dtype
) -> None:
    cpu, shape = torch.device("cpu"), KvShape(2, 3, 24)
    ours, twin = (KvMemory(shape, 5, 7, dtype, cpu, one) for one in (kernels, None))
    slots = torch.stack((torch.tensor([30, 4, 11]), torch.tensor([95, 2, 1])))
    mixed = torch.randn(1, 9, 24).to(dtype)
    for memory in (ours, twin):
        memory.planes[0].write(1, slots, mixed[:, 3:6], mixed[:, 6:])
    assert torch.equal(ours.block_rows, twin.block_rows)
    assert ours.block_rows.any()
