"""KV in fp8 (`--kv-cache-dtype fp8`): all ways to run a model round the same numbers alike."""

from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine.attention import device_batch, latents
from engine.kernels.gpu.kernels import TritonKernels
from engine.running import device
from engine.tiers.book import TierBook
from engine.tiers.host_book import HostBook
from engine.tiers.host_memory import HostMemory
from engine.tiers.tiers import Tiers
from kv_transfer.layout import can_pull
from node.identity import layout_of
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import GREEDY, assert_idle, load, prompt, requests, run
from tests.fakes.fetched import split
from tests.fakes.ranks import ranked
from tests.integration.test_engine_logprobs import ask

TWO_KINDS = ["gemma4_text", "gemma4"]  # of layers: hand-overs are between equal blocks
FAMILIES = ["llama", "gemma3_text", "gpt_oss", "deepseek_v3", *TWO_KINDS]
SPLITS = [(family, 16, 16) for family in TWO_KINDS]
SPLITS += [(one, *sizes) for one in FAMILIES[:4] for sizes in ((16, 16), (16, 32), (32, 16))]
PROMPTS = [prompt(length) for length in (1, 15, 16, 33, 75)]
FP8: dict[str, Any] = {"kv_cache_dtype": "fp8"}
KERNELS = ["torch", "native"]
DRAFTS = '{"num_speculative_tokens": 4}'


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        family: make_checkpoint(tmp_path_factory.mktemp(family), family) for family in FAMILIES
    }


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


def test_a_block_has_a_byte_for_each_number(folder: Path) -> None:
    wide, eight = load(folder), load(folder, **FP8)
    assert 4 * eight.kv_regions[0].block_bytes == wide.kv_regions[0].block_bytes
    assert (eight.info.kv_dtype, eight.info.dtype) == ("float8_e4m3fn", "float32")
    assert eight.memory.shape == with_fields(wide.memory.shape, stored=torch.float8_e4m3fn)
    room = 1 << 20
    wide, eight = (load(folder, kv_cache_memory_bytes=room, **more) for more in ({}, FP8))
    assert eight.memory.num_blocks == room // eight.kv_regions[0].block_bytes
    assert eight.memory.num_blocks >= 4 * wide.memory.num_blocks


@pytest.mark.parametrize("kernels", KERNELS)
def test_what_is_said_is_nearly_what_is_said_otherwise(folder: Path, kernels: str) -> None:
    """Rounding changes log-probabilities, and by little."""
    asked = requests(PROMPTS, replace(GREEDY, max_tokens=1, prompt_logprobs=0))
    found = []
    for more in ({}, FP8):
        engine = load(folder, cpu_kernels=kernels, max_num_batched_tokens=16, **more)
        told = [one for heard in ask(engine, asked) for one in heard.prompt or ()]
        found.append(torch.tensor([row[0].logprob for row in told]))
    distances = (found[0] - found[1]).abs()
    assert 1e-4 < distances.mean() < 0.2


def test_the_kernels_say_what_torch_says(folder: Path) -> None:
    asked = requests(PROMPTS)
    native, plain = (load(folder, cpu_kernels=kernels, **FP8) for kernels in KERNELS)
    assert run(native, asked) == run(plain, asked)


@pytest.mark.parametrize("drafts", [None, DRAFTS])
def test_a_device_says_what_the_host_says(folder: Path, drafts: str | None) -> None:
    asked = requests(PROMPTS)
    expected = run(load(folder, **FP8), asked)
    for eager in (False, True):
        more = {**FP8, "enforce_eager": eager, "speculative_config": drafts}
        assert run(on_device(folder, FakeAccelerator(), **more), asked) == expected


def test_the_interpreted_kernels(folder: Path) -> None:
    asked = requests([PROMPTS[1], PROMPTS[3]], replace(GREEDY, max_tokens=3))
    accelerator = FakeAccelerator(TritonKernels())
    engine = on_device(
        folder, accelerator, enforce_eager=True, max_num_batched_tokens=24, **FP8
    )
    assert run(engine, asked) == run(load(folder, **FP8), asked)


@pytest.mark.parametrize(("family", "prefill", "decode"), SPLITS)
def test_split_is_one_engine(
    folders: dict[str, Path], family: str, prefill: int, decode: int
) -> None:
    folder = folders[family]
    source = load(folder, block_size=prefill, max_num_batched_tokens=24, **FP8)
    sink, whole = (load(folder, block_size=size, **FP8) for size in (decode, 16))
    asked = requests(PROMPTS)
    expected = [token for answer in run(whole, asked) for token in answer]
    assert split(source, sink, asked)[1] == expected
    assert_idle(source)
    assert_idle(sink)


def test_ranks_say_what_one_process_says(folder: Path) -> None:
    asked = requests(PROMPTS)
    with ranked(folder, 2, max_num_batched_tokens=40, **FP8) as engine:
        assert run(engine, asked) == run(load(folder, **FP8), asked)


def test_long_chunks_over_latents_are_expanded(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what is stored of them, and behind what is cached."""
    types = set[torch.dtype]()
    read = latents.HostChunk.latents

    def noted(self: latents.HostChunk, layer: int) -> torch.Tensor:
        types.add((found := read(self, layer)).dtype)
        return found

    monkeypatch.setattr(latents.HostChunk, "latents", noted)
    asked = requests(PROMPTS)
    whole, cut = (
        load(folders["deepseek_v3"], max_num_batched_tokens=most, **FP8) for most in (256, 5)
    )
    assert run(whole, asked) == run(cut, asked)
    assert types == {torch.float8_e4m3fn}


def test_so_are_those_of_a_device(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (device, device_batch):
        monkeypatch.setattr(module, "LEAST_EXPANDED", 16)
    asked, folder = requests(PROMPTS), folders["deepseek_v3"]
    engine = on_device(folder, FakeAccelerator(), max_num_batched_tokens=80, **FP8)
    assert run(engine, asked) == run(load(folder, **FP8), asked)


def test_evicted_blocks_come_back_as_they_were(folder: Path) -> None:
    longest, other = requests([PROMPTS[-1], prompt(75, seed=7)])
    one = load(folder, block_size=1, **FP8).kv_regions[0].block_bytes
    engine = load(folder, max_model_len=96, block_size=4, kv_cache_memory_bytes=98 * one, **FP8)
    blocks = engine.memory.bytes_of_blocks
    book = TierBook(HostBook(200), blocks.shape[1])
    engine.attach_tiers(Tiers(book, HostMemory(blocks, 200), None, clock=lambda: 0.0))
    first = run(engine, [longest])
    run(engine, [other])
    assert run(engine, [longest]) == first
    assert engine.load.tiers[0].loaded > 0


def test_nodes_of_different_types_are_not_paired(folders: dict[str, Path]) -> None:
    """Nor those that round alike, but compute in another type."""
    engines = [
        load(folders["llama"], **more)
        for more in ({}, FP8, {"kv_cache_dtype": "fp8_e4m3"}, {**FP8, "dtype": "bfloat16"})
    ]
    plain, eight, same, half = (
        (engine.info.fingerprint, layout_of(engine)) for engine in engines
    )
    assert eight == same
    assert eight[0] not in (plain[0], half[0])
    assert can_pull(plain[1], eight[1]) is not None
    made_of = engines[1].info.made_of
    assert made_of["kv_cache_dtype"] == "float8_e4m3fn of float32"
    assert "kv_cache_dtype" not in engines[0].info.made_of
