"""Adapters in a device's steps: with graphs and without, interpreted kernels, ahead of time."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.products import TritonProducts
from engine.kernels.lora import AdapterStack, SortedRows
from engine.kernels.products import TorchProducts
from engine.running.device import DeviceRunner
from engine.stepping.ahead import AheadStepper
from engine.stepping.stepper import PlainStepper
from tests.fakes.adapters import make_adapter, named
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import load, run
from tests.integration.test_device_steps import SEEDED, device_runner
from tests.integration.test_few_rows import LAYERS, PRODUCTS_OF_A_LAYER, Watched
from tests.integration.test_lora import asked

NAMES = [None, "first", "second", "first"]


class CapturedProducts(TorchProducts):
    """Adds adapters without a look at what the device has: everything of everybody, masked."""

    def add_adapters(
        self, outputs: Tensor, inputs: Tensor, rows: SortedRows, stack: AdapterStack
    ) -> Tensor:
        places = torch.empty_like(rows.order).scatter_(
            0, rows.order.long(), torch.arange(len(rows.order), dtype=torch.int32)
        )
        for adapter in range(len(stack.down)):
            first, end = rows.offsets[adapter], rows.offsets[adapter + 1]
            ours = ((places >= first) & (places < end))[:, None]
            added = inputs @ stack.down[adapter].T @ stack.up[adapter].T
            outputs += torch.where(ours, added, 0.0)
        return outputs


@pytest.fixture(scope="module")
def two(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("adapters")
    first = make_adapter(llama, folder / "first", 1)
    second = make_adapter(
        llama, folder / "second", 2, r=20, target_modules=["q_proj", "v_proj"]
    )
    return named(first, second)


@pytest.fixture(scope="module")
def expected(llama: Path, two: tuple[str, ...]) -> list[list[int]]:
    return run(load(llama, lora_modules=two), asked(NAMES, SEEDED))


@pytest.mark.parametrize("draws", [False, True], ids=["one by one", "ahead"])
def test_graphs_with_adapters_and_graphs_without(
    llama: Path, two: tuple[str, ...], expected: list[list[int]], draws: bool
) -> None:
    accelerator = FakeAccelerator(products=CapturedProducts(), draws=draws)
    engine = on_device(llama, accelerator, lora_modules=two)
    plain = engine.stepper.plain if isinstance(engine.stepper, AheadStepper) else engine.stepper
    assert isinstance(plain, PlainStepper)
    assert isinstance(plain.runner, DeviceRunner)
    graphs, adapter_graphs = plain.runner.graphs, plain.runner.adapter_graphs
    assert graphs is not None
    assert adapter_graphs is not None
    assert list(graphs.sizes) == list(adapter_graphs.sizes) == [1, 2, 4, 6]
    for names in (NAMES, [None], ["second"]):
        before = accelerator.tape.replayed, accelerator.tape.replayed_pieces
        right = expected if names is NAMES else run(load(llama, lora_modules=two), asked(names))
        said = run(engine, asked(names, SEEDED) if names is NAMES else asked(names))
        assert said == right
        assert accelerator.tape.replayed > before[0]
        assert accelerator.tape.replayed_pieces > before[1]


def test_a_step_without_adapters_takes_the_path_of_few_rows(
    llama: Path, two: tuple[str, ...]
) -> None:
    """One with an adapter goes through the layers that have them."""
    kernels = Watched(2)
    engine = on_device(llama, FakeAccelerator(kernels), enforce_eager=True, lora_modules=two)
    plain, adapted = asked([None])[1], asked(["first"])[1]
    for request, few in ((adapted, 0), (plain, plain.sampling.max_tokens - 1)):
        kernels.seen.clear()
        assert run(engine, [request]) == run(load(llama, lora_modules=two), [request])
        assert len(kernels.seen) == few * LAYERS * PRODUCTS_OF_A_LAYER


def test_the_interpreted_kernels(llama: Path, two: tuple[str, ...]) -> None:
    accelerator = FakeAccelerator(TritonKernels(), products=TritonProducts())
    settings: dict[str, object] = {"lora_modules": two, "max_num_batched_tokens": 24}
    engine = on_device(llama, accelerator, enforce_eager=True, **settings)
    every = asked(NAMES, replace(SEEDED, max_tokens=3))[1:4]
    assert run(engine, every) == run(load(llama, lora_modules=two), every)


@pytest.mark.parametrize("quantization", ["fp8", "int4"])
def test_weights_that_are_quantized(
    llama: Path, two: tuple[str, ...], quantization: str
) -> None:
    chosen: dict[str, object] = {"lora_modules": two, "quantization": quantization}
    engine = on_device(llama, FakeAccelerator(products=CapturedProducts()), **chosen)
    right = run(load(llama, cpu_kernels="torch", **chosen), asked(NAMES))
    assert run(engine, asked(NAMES)) == right


def test_products_that_wait_for_the_device_are_not_captured(
    llama: Path, two: tuple[str, ...], expected: list[list[int]]
) -> None:
    engine = on_device(llama, lora_modules=two)
    runner = device_runner(engine)
    assert (runner.adapter_graphs, runner.adapter_pieces) == (None, None)
    assert run(engine, asked(NAMES, SEEDED)) == expected


def test_what_is_staged_has_room_for_every_row(llama: Path, two: tuple[str, ...]) -> None:
    accelerator = FakeAccelerator(products=CapturedProducts())
    runner = device_runner(on_device(llama, accelerator, lora_modules=two))
    fields = runner.staging.clear(runner.staging.most)
    assert fields.order.tolist() == [*range(runner.staging.most.tokens)]
    assert fields.offsets.tolist() == [0, 0, 0]
    plain = device_runner(on_device(llama))
    assert len(plain.staging.clear(plain.staging.most).order) == 0
