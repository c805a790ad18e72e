"""Steps of a model with states on a device: measured, launched, and replayed as graphs."""

import pytest
import torch

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.running.device import DeviceRunner, staged_bytes
from engine.running.kv_budget import least_blocks, measure
from engine.scheduling.sequence_manager import Limits
from tests.fakes.device import FakeAccelerator
from tests.fakes.recurrent import BLOCK, LAYERS, Noting, Stateful, memory_of

LIMITS, BLOCKS = Limits(33, 5, 64), 40
KV = [[index, index + 20] for index in range(3)]
STATES = [[10 + index, 30 + index] for index in range(3)]


def span(sequence: int, start: int, length: int) -> Span:
    return Span(start, length, KV[sequence], state=STATES[sequence])


PLANS = [
    Plan([1, 2, 3, 4, 5, 6], (), [span(0, 0, 4), span(1, 0, 2)], (3, 5)),
    Plan([0, 1], [span(0, 4, 1), span(1, 2, 1)], (), (0, 1)),
    Plan([2, 3, 3, 4], [span(0, 5, 1)], [span(2, 0, 3)], (0, 3)),
    Plan([5, 6, 0], [span(2, 3, 1), span(0, 6, 1), span(1, 3, 1)], (), (0, 1, 2)),
]


@pytest.mark.parametrize("captured", [False, True])
@torch.inference_mode()
def test_steps_are_those_of_main_memory(captured: bool) -> None:
    """Of graphs as well: of decode steps whole, and around the states of chunks in pieces."""
    model, plain, ours = Stateful(), memory_of(BLOCKS), memory_of(BLOCKS)
    accelerator = FakeAccelerator()
    runner = DeviceRunner(model, ours, accelerator, LIMITS)
    runner.warm()
    if captured:
        runner.capture(accelerator.recorder())
    assert ours.block_rows.isnan().all(), "nothing but padding was run"
    for plan in PLANS:
        batch = AttentionBatch(plain, plan.singles, plan.chunks)
        expected = model.forward(torch.tensor(plan.tokens), batch)
        ran = runner.run(plan)
        torch.testing.assert_close(ran.hidden[: len(plan.tokens)], expected)
        assert ran.logits is not None
        picked = model.logits(expected)[list(plan.picks)]
        torch.testing.assert_close(ran.logits, picked)
        torch.testing.assert_close(ours.block_rows, plain.block_rows, equal_nan=True)
    tape = accelerator.tape
    assert tape.replayed == (2 if captured else 0)
    assert tape.replayed_pieces == (2 * (LAYERS + 1) if captured else 0)


def test_each_sequence_of_what_is_measured_has_blocks_of_its_own() -> None:
    states = memory_of(1).state_blocks
    assert states > 1
    blocks = least_blocks(LIMITS, BLOCK, states)
    model = Noting()
    measure(model, FakeAccelerator(), memory_of(blocks), LIMITS, 12, graphs=True)
    assert model.taken
    for taken in model.taken:
        assert len(set(taken)) == len(taken)
        assert max(taken) < blocks


def test_staging_has_room_for_their_tables() -> None:
    ours = memory_of(1)
    plain = KvMemory(KvShape(1, 1, 16), 1, BLOCK, torch.float32, torch.device("cpu"))
    more = staged_bytes(LIMITS, ours, 0) - staged_bytes(LIMITS, plain, 0)
    assert more >= LIMITS.max_sequences * ours.state_blocks * 4
