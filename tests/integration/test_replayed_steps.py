"""Decode steps that are made again by their kernels' calls say what they said by Python."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from engine.kernels.cpu.library import RecordedCalls
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.cpu.recording import Arena
from engine.request import Request, Sampling
from engine.running.replaying import MOST, ReplayingRunner
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.cpu import packs_as_we_read
from tests.fakes.driver import GREEDY, eager, hand_over, load, prompt, requests, run, runner_of

SEEDED = replace(GREEDY, temperature=0.9, top_k=60, top_p=0.95, seed=11, max_tokens=23)
SHAPED = replace(SEEDED, repetition_penalty=1.2, logit_bias=((5, 2.5),), logprobs=2)
PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64, 90)]
DENSE = ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "granite", "phi3"]
DENSE += ["qwen3_5_text", "bamba", "falcon_h1", "lfm2"]
ORDER = torch.tensor([1, 0])
CHUNKED: dict[str, object] = {
    "max_num_batched_tokens": 48
}  # bfloat16 rounds other chunks otherwise
OTHER = ["mixtral", "deepseek_v3", "gpt_oss", "olmo2", "nemotron_h", "lfm2_moe"]
OTHER += ["gemma4_text"]  # which multiplies by scalars in plain torch


@pytest.fixture(autouse=True)
def in_pairs(request: pytest.FixtureRequest) -> None:
    """Without products of its own for bfloat16 nothing is a kernel's from end to end."""
    if "kernels" not in request.fixturenames and not packs_as_we_read():
        pytest.skip("oneDNN multiplies a few rows of bfloat16 here")


def half(folder: Path, **settings: object) -> TorchEngine:
    return load(folder, **{"dtype": "bfloat16", "block_size": 5, **settings})


def replaying(engine: TorchEngine) -> ReplayingRunner:
    runner = runner_of(engine)
    assert isinstance(runner, ReplayingRunner)
    return runner


def mixed() -> list[Request]:
    kinds: list[Sampling] = [GREEDY, SEEDED, SHAPED] * len(PROMPTS)
    pairs = zip(requests(PROMPTS), kinds, strict=False)
    return [replace(request, sampling=sampling) for request, sampling in pairs]


@pytest.mark.parametrize("family", DENSE)
def test_every_dense_family(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family)
    expected = run(half(folder, enforce_eager=True, **CHUNKED), mixed())
    engine = half(folder, **CHUNKED)
    assert run(engine, mixed()) == expected
    assert replaying(engine).replays
    assert len(replaying(engine)._steps) > 2
    assert run(engine, mixed()) == expected  # nothing is recorded any more


@pytest.mark.parametrize("family", OTHER)
def test_where_torch_computes_as_well_steps_go_the_plain_way(
    family: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path, family)
    expected = run(half(folder, enforce_eager=True, **CHUNKED), mixed())
    engine = half(folder, **CHUNKED)
    assert run(engine, mixed()) == expected
    assert not replaying(engine).replays


@pytest.mark.parametrize("rounding", ["int8", "int4", "fp8"])
def test_weights_of_few_bits(rounding: str, llama: Path) -> None:
    expected = run(half(llama, quantization=rounding, enforce_eager=True), mixed())
    engine = half(llama, quantization=rounding)
    assert run(engine, mixed()) == expected
    assert replaying(engine)._steps


def test_steps_of_many_are_not_replayed_and_those_of_few_still_are(llama: Path) -> None:
    engine = half(llama, max_num_seqs=MOST + 1)
    asked = requests([prompt(5)] * (MOST + 1), replace(GREEDY, max_tokens=3))
    assert run(engine, asked) == run(half(llama, enforce_eager=True), asked)
    assert replaying(engine).replays
    assert max(replaying(engine)._steps, default=0) <= MOST


def test_steps_clear_the_blocks_that_they_enter(llama: Path) -> None:
    """Recorded or replayed, they leave nothing of whoever had them before."""
    few = replace(GREEDY, max_tokens=3)  # the first step enters a block, and does not fill it
    runs = requests([prompt(5)], few), requests(PROMPTS, SEEDED)
    left = list[list[Tensor]]()
    for is_eager in (True, False):
        engine = half(llama, enforce_eager=is_eager)
        rows, seen = engine.memory.block_rows, list[Tensor]()
        with torch.inference_mode():
            rows.fill_(torch.nan)
        for asked in runs:
            run(engine, asked)
            seen.append(rows.isnan())
        left.append(seen)
    for expected, ours in zip(*left, strict=True):
        assert not expected.all()
        assert torch.equal(ours, expected)


def test_preempted_is_undisturbed(llama: Path) -> None:
    tight = {"kv_cache_memory_bytes": 120 * half(llama, block_size=1).kv_regions[0].block_bytes}
    expected = run(half(llama, enforce_eager=True), requests(PROMPTS))
    engine = eager(half(llama, max_model_len=110, block_size=4, **tight))
    assert run(engine, requests(PROMPTS)) == expected
    assert engine.load.preemptions > 0


def test_a_hand_over_goes_on(llama: Path) -> None:
    asked = requests(PROMPTS)
    expected = run(half(llama, enforce_eager=True), asked)
    assert hand_over(half(llama), half(llama), asked) == expected


def test_sizes_share_memory_and_do_not_disturb_each_other(llama: Path) -> None:
    engine, plain = half(llama), half(llama, enforce_eager=True)
    for some in (7, 1, 4, 2, 7, 3, 1):
        asked = requests(PROMPTS[:some])
        assert run(engine, asked) == run(plain, asked)
    assert set(replaying(engine)._steps) >= {1, 2, 3, 4, 7}


def recorded(
    kernels: CpuKernels, work: Callable[[], Tensor]
) -> tuple[Tensor, RecordedCalls | str]:
    with torch.inference_mode():
        return kernels.record(work)


def test_calls_are_made_again_over_what_is_there_now(kernels: CpuKernels) -> None:
    inputs, other = torch.randn(3, 64), torch.randn(3, 64)
    weight = torch.randn(64)

    def work() -> Tensor:
        added, _ = kernels.add_norm(inputs, other, weight, 1e-6, 1)
        return kernels.gated(added, "silu")

    made, calls = recorded(kernels, work)
    assert isinstance(calls, RecordedCalls)
    first = made.clone()
    junk = [torch.full((3, 64), torch.nan) for _ in range(64)]  # takes what was free
    inputs.normal_()
    calls.replay()
    assert not torch.equal(made, first)
    assert torch.equal(made, work())
    del junk


def test_what_is_recorded_is_not_remembered_afterwards(kernels: CpuKernels) -> None:
    inputs, weight = torch.randn(3, 64), torch.randn(64)
    made, calls = recorded(kernels, lambda: kernels.norm(inputs, weight, 1e-6))
    assert isinstance(calls, RecordedCalls)
    kept = made.clone()
    kernels.norm(torch.randn(5, 64), weight, 1e-6)
    calls.replay()
    assert torch.equal(made, kept)


@pytest.mark.parametrize(
    ("spoil", "by"),
    [
        (lambda one: one + 1, "add"),
        (lambda one: one.mul_(2), "mul_"),
        (lambda one: one.t().contiguous(), "contiguous"),
        (lambda one: one.index_select(0, ORDER), "index"),
    ],
)
def test_an_operation_of_torch_spoils_it(
    kernels: CpuKernels, spoil: Callable[[Tensor], Tensor], by: str
) -> None:
    inputs, weight = torch.randn(3, 64), torch.randn(64)
    made, calls = recorded(kernels, lambda: spoil(kernels.norm(inputs, weight, 1e-6)))
    assert isinstance(calls, str)
    assert by in calls
    assert torch.equal(made, spoil(kernels.norm(inputs, weight, 1e-6)))


def test_a_work_that_fails_leaves_nothing_behind(kernels: CpuKernels) -> None:
    def work() -> Tensor:
        raise LookupError("no such block")

    with pytest.raises(LookupError):
        recorded(kernels, work)
    norm = kernels.library.function("pd_norm")
    assert norm.call is norm.plain


def test_memory_is_taken_again_when_the_last_view_of_it_is_gone() -> None:
    arena = Arena()
    first = arena.empty((4, 8), torch.bfloat16)
    view, at = first[1:].view(-1), first.data_ptr()
    del first
    other = arena.empty((4, 8), torch.bfloat16)
    assert other.data_ptr() != at
    del view
    assert arena.empty((2, 8), torch.float32).data_ptr() == at


def test_nothing_takes_memory_of_no_size() -> None:
    assert Arena().empty((0, 8), torch.float32).shape == (0, 8)
