"""A batch on a device goes through the states of its layers as one in main memory does."""

import pytest
import torch
from torch import Tensor

from engine.attention.device_batch import DeviceBatch
from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape, StateShape
from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape, RecurrentWeights
from engine.running.staging import BatchSize, Staging
from tests.kernels.recurrent_cases import Net, convolution_weights, delta_weights, mamba_weights

NET, CHANNELS = RecurrentShape(1, 2, 16, 16, 3), RecurrentShape(160, 160, 0, 1, 5)
LAYERS, BLOCK, BLOCKS = 3, 16, 40
SINGLES = [Span(0, 1, [3], state=[20, 21]), Span(13, 1, [9], state=[31, 30])]
CHUNKS = [Span(0, 7, [4], state=[22, 35]), Span(8, 20, [10, 12], state=[24, 27])]
ROWS, SPARE = 29, 3


def memory_on(device: torch.device, net: RecurrentShape) -> KvMemory:
    """What nobody wrote is no number."""
    shape = KvShape(2, 2, 16, state=StateShape(LAYERS, net))
    memory = KvMemory(shape, BLOCKS, BLOCK, torch.float32, device)
    assert memory.state_blocks == 2
    memory.block_rows.fill_(torch.nan)
    return memory


def fill(memory: KvMemory, spans: list[Span]) -> None:
    """The states of what goes on."""
    for layer in range(LAYERS):
        states = memory.states(layer)
        for span in spans:
            if span.start:
                states.memory[span.state[states.place]] = torch.randn_like(states.memory[0])
                states.inputs[span.state[states.place]] = torch.randn_like(states.inputs[0])


def inputs_on(
    device: torch.device, rows: int, net: RecurrentShape, rates: int
) -> RecurrentInputs:
    return RecurrentInputs(
        torch.randn(rows, net.channels + net.values, device=device),
        torch.randn(rows, rates * net.value_heads, device=device),
    )


def through(
    batch: AttentionBatch | DeviceBatch, weights: RecurrentWeights, inputs: RecurrentInputs
) -> Tensor:
    """All layers side by side."""
    return torch.stack([batch.recurrence(at, weights, inputs) for at in range(LAYERS)])


@pytest.mark.parametrize("kernels", [TorchKernels, TritonKernels])
@pytest.mark.parametrize(
    ("net", "sizes", "rates"),
    [(delta_weights, NET, 2), (mamba_weights, NET, 1), (convolution_weights, CHANNELS, 1)],
)
def test_all_layers_of_a_mixed_batch(
    net: Net,
    sizes: RecurrentShape,
    rates: int,
    kernels: type[TorchKernels],
    device: torch.device,
) -> None:
    """Layers lie in one block or another; rows and sequences of padding are behind them."""
    ours, plain = memory_on(device, sizes), memory_on(device, sizes)
    fill(ours, [*SINGLES, *CHUNKS])
    plain.block_rows.copy_(ours.block_rows)
    weights = net(sizes, torch.float32, device)
    inputs = inputs_on(device, ROWS + SPARE, sizes, rates)
    some = RecurrentInputs(*(one[:ROWS] for one in inputs))
    expected = through(AttentionBatch(plain, SINGLES, CHUNKS), weights, some)
    size = BatchSize(ROWS + SPARE, 6, 16, states=ours.state_blocks)
    plan = Plan(range(ROWS), SINGLES, CHUNKS, ())
    fields = Staging(size, BLOCK, device).stage(size, plan)
    batch = DeviceBatch(ours, kernels(), fields.metadata, len(SINGLES), 20)
    answer = through(batch, weights, inputs)
    torch.testing.assert_close(answer[:, :ROWS], expected, rtol=1e-4, atol=1e-5)
    assert not answer[:, ROWS:].any()
    torch.testing.assert_close(
        ours.block_rows, plain.block_rows, rtol=1e-4, atol=1e-5, equal_nan=True
    )
