"""Ranks on devices replay graphs with their sums in them, and begin steps ahead, together."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.request import Sampling
from engine.running.piecewise import piece_sizes
from engine.stepping.ahead import AheadStepper
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import DEVICE, FakeAccelerator
from tests.fakes.driver import (
    eager,
    load,
    prompt,
    requests,
    run,
)
from tests.fakes.fetched import split
from tests.fakes.ranks import ranked
from tests.integration.test_ahead import GRAMMAR, asked
from tests.integration.test_device_steps import GREEDY, SAMPLINGS, SEEDED, mixed

PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64, 90)]
SIZES = [6, 4, 2, 1]  # of graphs, in the order in which they are captured


@contextmanager
def on_devices(
    folder: Path, ranks: int = 2, *, draws: bool = False, **settings: object
) -> Iterator[tuple[TorchEngine, list[FakeAccelerator]]]:
    """The engine that leads, and the device of each rank."""
    devices = [FakeAccelerator(draws=draws) for _ in range(ranks)]
    with ranked(folder, ranks, devices, **{**DEVICE, **settings}) as engine:
        yield engine, devices


@pytest.mark.parametrize("family", ["llama", "olmo2", "phi3", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("draws", [False, True])
def test_ranks_with_graphs_say_what_one_process_says(
    tmp_path: Path, family: str, draws: bool
) -> None:
    folder = make_checkpoint(tmp_path, family)
    expected = run(load(folder), mixed(SAMPLINGS))
    settings: dict[str, Any] = {"max_num_batched_tokens": 48, "block_size": 5}
    with on_devices(folder, draws=draws, **settings) as (engine, devices):
        assert isinstance(engine.stepper, AheadStepper) is draws
        assert run(engine, mixed(SAMPLINGS)) == expected
    tapes = [device.tape for device in devices]
    captured = 0 if family in ("gpt_oss", "deepseek_v3") else len(SIZES)
    assert [tape.captured for tape in tapes] == [captured] * 2
    assert tapes[0].replayed == tapes[1].replayed
    assert tapes[0].replayed_pieces == tapes[1].replayed_pieces
    assert bool(tapes[0].replayed) is bool(tapes[0].replayed_pieces) is bool(captured)


def test_every_rank_says_the_same_to_the_others_in_the_same_order(llama: Path) -> None:
    """Sums of two layers, each of attention and MLP, and what gathers logits; per graph."""
    with on_devices(llama, 4) as (_, devices):
        spoken = [device.tape.spoken for device in devices]
    assert all(one == spoken[0] for one in spoken)
    pieces = sorted(piece_sizes(DEVICE["max_num_batched_tokens"]), reverse=True)
    for size, said in zip([*SIZES, *pieces], spoken[0], strict=True):
        assert [name for name, _ in said[:4]] == ["c10d.allreduce_.default"] * 4
        assert all(shape[0] == size for _, shapes in said[:4] for shape in shapes)
    gathering = [name for said in spoken[0] for name, _ in said[4:]]
    assert gathering == ["c10d._allgather_base_.default"] * len(SIZES), "pieces have no logits"


def test_without_graphs_none_are_captured(llama: Path) -> None:
    with on_devices(llama, draws=True, enforce_eager=True) as (engine, devices):
        assert run(engine, requests(PROMPTS, SEEDED)) == run(
            load(llama), requests(PROMPTS, SEEDED)
        )
    assert [device.tape.captured for device in devices] == [0, 0]
    assert [device.tape.captured_in_pieces for device in devices] == [0, 0]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "samplings", [(GREEDY, SEEDED), (GREEDY, GRAMMAR)], ids=["at once", "late"]
)
def test_steps_begun_ahead_take_what_the_first_rank_drew(
    llama: Path, ranks: int, samplings: tuple[Sampling, ...]
) -> None:
    expected = run(load(llama), asked(*samplings))
    settings: dict[str, Any] = {"block_size": 3, "max_num_batched_tokens": 40}
    with on_devices(llama, ranks, draws=True, **settings) as (engine, devices):
        devices[0].begin_anew()
        assert run(engine, asked(*samplings)) == expected
        assert devices[0].begun
        assert not any(device.begun or "draw" in device.order for device in devices[1:])


def test_preempted_is_undisturbed(llama: Path) -> None:
    expected = run(load(llama), requests(PROMPTS))
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes // 2
    tight: dict[str, Any] = {
        "kv_cache_memory_bytes": 120 * token_bytes,
        "max_model_len": 110,
        "block_size": 4,
    }
    with on_devices(llama, draws=True, **tight) as (engine, _):
        assert run(eager(engine), requests(PROMPTS)) == expected
        assert engine.load.preemptions > 0


@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), (2, 1), (2, 2)])
def test_split_is_unsplit(llama: Path, prefill: int, decode: int) -> None:
    wanted = requests(PROMPTS, SEEDED)
    whole = [token for answer in run(load(llama), wanted) for token in answer]
    with (
        on_devices(llama, prefill, draws=True) as (source, _),
        on_devices(llama, decode, draws=True, max_num_seqs=7) as (sink, _),
    ):
        assert split(source, sink, wanted)[1] == whole


def test_memory_for_kv_is_what_the_rank_with_least_has(llama: Path) -> None:
    """Each looks at its own device, at the same time, and both have room for as many blocks."""
    devices = [FakeAccelerator(free=free, total=1 << 24) for free in (1 << 24, 15 << 20)]
    settings: dict[str, Any] = {**DEVICE, "kv_cache_memory_bytes": None}
    with ranked(llama, 2, devices, gpu_memory_utilization=0.5, **settings) as engine:
        first, second = engine.kv_regions
        assert first.num_blocks == second.num_blocks == engine.load.total_blocks
        assert run(engine, requests(PROMPTS)) == run(load(llama), requests(PROMPTS))
    assert all(device.tape.captured for device in devices)
