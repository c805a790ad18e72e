"""KV gets what weights and the largest batch leave of our share of a device."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.child import numbered
from engine.attention.kv_memory import KvMemory
from engine.errors import UnusableDevice
from engine.kernels.contract import Linear
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.rows import Rows
from engine.loading import load_engine
from engine.models.decoder import Decoder
from engine.models.model import Model
from engine.running.accelerator import CudaAccelerator, open_accelerator
from engine.running.device import DeviceRunner
from engine.running.kv_budget import (
    GIB,
    DeviceMemoryBudget,
    MemoryNeeds,
    SizedModel,
    kv_bytes,
    least_blocks,
    log_kv_cache_size,
    measure,
    share_bytes,
)
from engine.running.staging import num_bytes
from engine.scheduling.sequence_manager import Limits
from engine.settings import EngineConfig
from engine.sizing import most_verified
from engine.stepping.stepper import PlainStepper
from node.config import NodeConfig
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import load

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
TOTAL, WEIGHTS, TAKEN, TRANSFER = 1 << 24, 500_000, 70_000, 900_000
CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def device(free: int, total: int) -> FakeAccelerator:
    return FakeAccelerator(TorchKernels(), free, total)


def test_the_share_is_of_all_that_the_device_has() -> None:
    assert share_bytes(device(100, 100), None) == 90
    assert share_bytes(device(60, 100), 0.5) == 50
    assert share_bytes(device(90, 100), None) == 90


def test_a_share_that_is_not_free_is_refused_by_name() -> None:
    with pytest.raises(UnusableDevice, match=r"utilization 0.9 of 8.00 GiB .* 6.00"):
        share_bytes(device(6 * GIB, 8 * GIB), None)


def test_kv_gets_what_is_left_and_nothing_left_is_refused_with_what_took_it() -> None:
    assert kv_bytes(1000, 300, MemoryNeeds(batch=100, graphs=50, later=30)) == 520
    with pytest.raises(UnusableDevice, match=r"weights take 3.00 GiB, the largest batch 1.00"):
        kv_bytes(4 * GIB, 3 * GIB, MemoryNeeds(GIB, GIB // 2))
    with pytest.raises(UnusableDevice, match=r"what moves KV 1.50 GiB"):
        kv_bytes(4 * GIB, GIB, MemoryNeeds(GIB, GIB // 2, 3 * GIB // 2))


class Filling(FakeAccelerator):
    """What is taken on the way is as scripted: weights before, more while a batch runs.

    Each is larger than a block, so that none is missed where blocks are counted.
    """

    def __init__(self) -> None:
        super().__init__(TorchKernels(), TOTAL, TOTAL)

    def empty_cache(self) -> None:
        self.free = TOTAL - WEIGHTS

    def memory_bytes(self) -> tuple[int, int]:
        found = self.free, self.total
        self.free -= TAKEN  # whatever ran since takes it
        return found


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_the_largest_batch_is_run_before_kv_is_sized(family: str, tmp_path: Path) -> None:
    """Keys and values that are made of latents, for the longest context, are counted, too."""
    model = load(make_checkpoint(tmp_path, family)).decoder
    assert isinstance(model, Decoder)
    accelerator = Filling()
    room = DeviceMemoryBudget.begin(accelerator, 0.5, transfer_bytes=TRANSFER)
    seen = list[int]()

    def memory_of(blocks: int) -> KvMemory:
        seen.append(blocks)
        return KvMemory(model.kv_shape, blocks, 4, torch.float32, torch.device("cpu"))

    limits = Limits(33, 5, 64)
    blocks = room.num_blocks([SizedModel(model, memory_of, limits)], graphs=True)
    block_bytes = memory_of(1).regions[0].block_bytes
    assert block_bytes < TAKEN
    staged = DeviceRunner(model, memory_of(blocks), accelerator, limits).staging
    made = model.workspace_bytes(64)
    assert (made > 64 * model.kv_shape.width * 4) is (family == "deepseek_v3")
    later = TRANSFER + num_bytes(staged.most) + made
    assert later > TRANSFER + 5 * 4 * 64 // 4, "tables of all seats are among it"
    assert blocks == (TOTAL // 2 - WEIGHTS - 2 * TAKEN - later) // block_bytes
    assert max(seen) * 4 >= 33


def test_a_model_and_its_draft_model_have_as_many_blocks(tmp_path: Path) -> None:
    """They run in turn, and so share what batches need; all else is for each."""
    models = [
        load(make_checkpoint(tmp_path / str(layers), num_hidden_layers=layers)).decoder
        for layers in (2, 1)
    ]

    def memory_of(model: Model, blocks: int) -> KvMemory:
        return KvMemory(model.kv_shape, blocks, 4, torch.float32, torch.device("cpu"))

    accelerator, limits = Filling(), Limits(33, 5, 64)
    room = DeviceMemoryBudget.begin(accelerator, 0.5)
    blocks = room.num_blocks(
        [SizedModel(one, partial(memory_of, one), limits) for one in models], graphs=True
    )
    block_bytes = sum(memory_of(one, 1).regions[0].block_bytes for one in models)
    assert block_bytes < TAKEN
    later = 2 * num_bytes(
        DeviceRunner(models[0], memory_of(models[0], blocks), accelerator, limits).staging.most
    )
    assert blocks == (TOTAL // 2 - WEIGHTS - 3 * TAKEN - later) // block_bytes


class RowsTaken(TorchKernels):
    """Notes the most rows that it was given."""

    rows = 0

    def turn_and_write(self, parts: Parts, *others: Any) -> torch.Tensor:  # noqa: ANN401
        self.rows = max(self.rows, len(parts[0]))
        return super().turn_and_write(parts, *others)


class TakenByRows(FakeAccelerator):
    """A device on which a batch takes a byte for each of its rows."""

    def __init__(self) -> None:
        self.taken = RowsTaken()
        super().__init__(self.taken, 1 << 20, 1 << 20)

    def empty_cache(self) -> None:
        self.taken.rows = 0

    def memory_bytes(self) -> tuple[int, int]:
        return self.free - self.taken.rows, self.total


@pytest.mark.parametrize(
    ("tokens", "seats", "graphs", "needs"),
    [
        (600, 5, True, MemoryNeeds(600, 512)),
        (33, 5, True, MemoryNeeds(33, 33)),
        (4, 9, True, MemoryNeeds(9, 9)),
        (600, 5, False, MemoryNeeds(600, 0)),
    ],
)
def test_graphs_need_what_the_largest_that_is_captured_works_in(
    tmp_path: Path, tokens: int, seats: int, graphs: bool, needs: MemoryNeeds
) -> None:
    model = load(make_checkpoint(tmp_path)).decoder
    limits = Limits(tokens, seats, 640)
    memory = KvMemory(
        model.kv_shape, least_blocks(limits, 4), 4, torch.float32, torch.device("cpu")
    )
    for verified in (0, 2):  # drafts of few seats add nothing
        found = measure(model, TakenByRows(), memory, limits, verified, graphs=graphs)
        assert found == needs


class TakenByLogits(FakeAccelerator):
    """A device on which a batch takes a byte for each of its rows that have logits."""

    def __init__(self, head: Linear) -> None:
        self.head, self.rows = head, 0
        super().__init__(TorchKernels(), 1 << 20, 1 << 20)

    def empty_cache(self) -> None:
        self.rows = 0

    def memory_bytes(self) -> tuple[int, int]:
        return self.free - self.rows, self.total

    def make_logits(self, inputs: Rows) -> torch.Tensor:
        self.rows = max(self.rows, len(inputs))
        return self.head(inputs)


@pytest.mark.parametrize(
    ("speculative", "rows"),
    [
        (None, 5),
        ('{"num_speculative_tokens": 4}', 25),
        ('{"num_speculative_tokens": 4, "disable_by_batch_size": 2}', 10),
        ('{"num_speculative_tokens": 16}', 33),
    ],
)
def test_drafts_need_logits_of_each(tmp_path: Path, speculative: str | None, rows: int) -> None:
    model = load(folder := make_checkpoint(tmp_path)).decoder
    assert isinstance(model, Decoder)
    accelerator, limits = TakenByLogits(model.head), Limits(33, 5, 64)
    memory = KvMemory(
        model.kv_shape, least_blocks(limits, 4), 4, torch.float32, torch.device("cpu")
    )
    counted = replace(model, head=accelerator.make_logits)
    config = EngineConfig(model=str(folder), speculative_config=speculative)
    verified = most_verified(config, limits)
    needs = measure(counted, accelerator, memory, limits, verified, graphs=False)
    assert needs == MemoryNeeds(rows, 0)


def test_lines_of_the_log_are_vllms(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_kv_cache_size(78_125, 16, 8192)
    assert "GPU KV cache size: 1,250,000 tokens" in caplog.text
    assert "Maximum concurrency for 8,192 tokens per request: 152.59x" in caplog.text
    with caplog.at_level(logging.INFO):
        log_kv_cache_size(10, 16, 17)
    assert "17 tokens per request: 5.00x" in caplog.text, "a block begun is a block taken"
    with caplog.at_level(logging.INFO):
        log_kv_cache_size(10, 16, 17, states=3)
    assert "17 tokens per request: 2.00x" in caplog.text


def test_a_device_gives_kv_all_that_is_left(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    engine = on_device(folder, kv_cache_memory_bytes=None, gpu_memory_utilization=0.5)
    (region,) = engine.kv_regions
    assert isinstance(engine.stepper, PlainStepper)
    assert isinstance(engine.stepper.runner, DeviceRunner)
    later = num_bytes(engine.stepper.runner.staging.most)
    assert region.num_blocks == ((1 << 29) - later) // region.block_bytes
    with pytest.raises(UnusableDevice, match="--gpu-memory-utilization"):
        load(folder, gpu_memory_utilization=0.5)


def test_who_moves_kv_is_left_what_it_takes(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    config = EngineConfig(model=str(folder), threads=1, gpu_memory_utilization=0.5)

    def kv_beside(num_bytes: int) -> int:
        engine = load_engine(config, accelerator=FakeAccelerator(), transfer_bytes=num_bytes)
        (region,) = engine.kv_regions
        return region.num_blocks * region.block_bytes

    assert kv_beside(0) - kv_beside(1 << 28) == 1 << 28


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_that_is_none_is_refused_by_name(share: float) -> None:
    with pytest.raises(ValueError, match="--gpu-memory-utilization"):
        NodeConfig(model="m", gpu_memory_utilization=share)


@CPU_ONLY
def test_a_device_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnusableDevice, match="--device cuda: there is no CUDA device"):
        load(make_checkpoint(tmp_path), device="cuda")
    with pytest.raises(UnusableDevice, match="--device cuda:3: there is no CUDA device"):
        open_accelerator("cuda:3")
    with pytest.raises(UnusableDevice, match="--device toaster: no device has this name; cpu"):
        open_accelerator("toaster")
    assert open_accelerator("cpu") is None


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_a_device_is_chosen_by_number_which_cuda_alone_has_not(
    name: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch takes no device without one, as it says without a GPU, too."""
    from torch.cuda._utils import _get_device_index

    chosen = list[int]()

    def choose(device: torch.device | int) -> None:
        chosen.append(_get_device_index(device))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", choose)
    assert isinstance(open_accelerator(name), CudaAccelerator)
    choose(numbered(torch.device(name)))
    assert chosen == [index, index]
    assert numbered(torch.device("cpu")) == torch.device("cpu")
