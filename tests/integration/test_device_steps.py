"""Steps as a device makes them, with graphs and without, say what the CPU's engine says."""

import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from engine.attention import device_batch
from engine.attention.device_batch import DeviceChunk
from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.overlapping import overlap_launches
from engine.kernels.gpu.products import TritonProducts
from engine.kernels.style import AttentionStyle
from engine.request import Request, Sampling
from engine.running import device
from engine.running.device import DeviceRunner
from engine.running.piecewise import AttentionCall
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import (
    assert_idle,
    drain,
    eager,
    load,
    move,
    park,
    prompt,
    requests,
    run,
    runner_of,
)
from tests.integration.test_loading import Terminal

GREEDY = Sampling(max_tokens=16, temperature=0, ignore_eos=True)
SEEDED = replace(GREEDY, temperature=0.9, top_k=60, top_p=0.95, min_p=0.001, seed=11)
SHAPED = replace(
    SEEDED, repetition_penalty=1.2, logit_bias=((5, 2.5),), bad_words=((6, 9),), logprobs=2
)
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED, "shaped": SHAPED}
PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64, 90)]
FAMILIES = ["llama", "qwen3", "olmo2", "gemma2", "ministral3", "qwen3_5_text", "bamba"]
FAMILIES += ["falcon_h1", "lfm2", "gemma4_text"]
LOOPED = {  # their experts ask which were chosen
    "gpt_oss",
    "mixtral",
    "deepseek_v3",
    "mistral4",
    "glm4_moe",
    "minimax_m2",
    "qwen3_next",
    "granitemoehybrid",
    "nemotron_h",
    "lfm2_moe",
    "gemma4",
}


def begins_early() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def graphs_of(engine: TorchEngine) -> list[int]:
    graphs = device_runner(engine).graphs
    return [] if graphs is None else list(graphs.sizes)


def device_runner(engine: TorchEngine) -> DeviceRunner:
    runner = runner_of(engine)
    assert isinstance(runner, DeviceRunner)
    return runner


def mixed(kinds: dict[str, Sampling]) -> list[Request]:
    """Every prompt, each with the next kind of sampling."""
    each = [*kinds.values()] * len(PROMPTS)
    pairs = zip(requests(PROMPTS), each, strict=False)
    return [replace(request, sampling=sampling) for request, sampling in pairs]


@pytest.mark.parametrize("family", [*FAMILIES, *sorted(LOOPED)])
def test_every_family(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family)
    expected = run(load(folder), mixed(SAMPLINGS))
    engine = on_device(folder, max_num_batched_tokens=48, block_size=5)
    assert graphs_of(engine) == ([] if family in LOOPED else [1, 2, 4, 6])
    assert run(engine, mixed(SAMPLINGS)) == expected


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_any_batch_and_any_padding(llama: Path, kind: str) -> None:
    asked = requests(PROMPTS, SAMPLINGS[kind])
    alone = [run(load(llama), [one])[0] for one in asked]
    for seats in (1, 3, 7):
        assert run(on_device(llama, max_num_seqs=seats), asked) == alone
    assert run(on_device(llama, enforce_eager=True), asked) == alone


def test_graphs_are_replayed_and_not_made_anew(llama: Path) -> None:
    engine = on_device(llama)
    tape = device_runner(engine).graphs
    assert tape is not None
    replays = dict(tape._replays)
    run(engine, requests(PROMPTS))
    assert tape._replays == replays


def test_without_graphs_none_are_captured(llama: Path) -> None:
    engine = on_device(llama, enforce_eager=True)
    assert graphs_of(engine) == []
    assert device_runner(engine).pieces is None


@pytest.mark.parametrize("drafts", [None, '{"num_speculative_tokens": 4}'])
def test_steps_of_few_tokens_are_replayed_in_pieces(llama: Path, drafts: str | None) -> None:
    """Whatever a capture left in their tensors, and beside larger ones that are not."""
    prompts = [(PROMPTS[3] * 4)[:50], *PROMPTS]
    expected = run(load(llama), requests(prompts))
    replayed = list[int]()
    for largest in (0, 48, 64):
        accelerator = FakeAccelerator()
        engine = on_device(llama, accelerator, speculative_config=drafts, block_size=5)
        pieces = device_runner(engine).pieces
        assert pieces is not None
        for size in pieces.sizes:
            if size > largest:
                del pieces._pieces[size]
        with torch.inference_mode():
            for call in chain(*(one.calls for one in pieces._pieces.values())):
                assert isinstance(call, AttentionCall)
                call.queries.fill_(torch.nan)
                call.read.fill_(torch.nan)
        assert run(engine, requests(prompts)) == expected
        replayed.append(accelerator.tape.replayed_pieces)
    assert 0 == replayed[0] < replayed[1] < replayed[2]


def test_a_terminal_sees_what_is_compiled_and_captured(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    on_device(llama)
    assert "compiling kernels" in terminal.getvalue()
    assert "capturing graphs" in terminal.getvalue()


@pytest.mark.parametrize("cached", [True, False])
def test_preempted_is_undisturbed(llama: Path, cached: bool) -> None:
    expected = run(load(llama), requests(PROMPTS))
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    tight: dict[str, object] = {
        "kv_cache_memory_bytes": 120 * token_bytes,
        "max_model_len": 110,
        "block_size": 4,
    }
    engine = eager(on_device(llama, None, enable_prefix_caching=cached, **tight))
    assert run(engine, requests(PROMPTS)) == expected
    assert engine.load.preemptions > 0


def test_a_cached_prefix_is_not_computed_again(llama: Path) -> None:
    engine = on_device(llama)
    (asked,) = requests([PROMPTS[-1]])
    first = run(engine, [asked])
    engine.generate(asked)
    (admitted,) = engine.schedule()
    assert admitted.cached_tokens == 80
    assert [drain(engine)[asked.request_id]] == first


def test_what_is_foretold_changes_nothing(llama: Path) -> None:
    prompts = [(PROMPTS[3] * 4)[:50], *PROMPTS[:3]]
    expected = run(load(llama), requests(prompts))
    engine = on_device(llama, speculative_config='{"num_speculative_tokens": 4}')
    assert run(engine, requests(prompts)) == expected
    assert engine.load.accepted_tokens > 0


@pytest.mark.parametrize("sides", ["to the CPU", "from the CPU", "both"])
def test_split_is_unsplit(llama: Path, sides: str) -> None:
    asked = requests(PROMPTS, SEEDED)
    whole = run(load(llama), asked)
    source = load(llama) if sides == "from the CPU" else on_device(llama)
    sink = load(llama) if sides == "to the CPU" else on_device(llama, max_num_seqs=7)
    first, answers = park(source, asked), list[list[int]]()
    for request in asked:
        move(source, sink, request)
        booked = sink.resume(request.request_id, [first[request.request_id]])
        answers.append([token for one in booked for token in one.tokens])
    sink.schedule()
    said = drain(sink)
    for request, answer in zip(asked, answers, strict=True):
        answer += said[request.request_id]
    assert answers == whole
    assert_idle(source)
    assert_idle(sink)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_oss", "deepseek_v3", "falcon_h1"])
def test_the_interpreted_kernels(family: str, tmp_path: Path) -> None:
    """Norms of heads, latents, clamped gates and states beside KV among them."""
    folder = make_checkpoint(tmp_path, family)
    asked = requests([PROMPTS[1], PROMPTS[3]], replace(GREEDY, max_tokens=3))
    accelerator = FakeAccelerator(TritonKernels(), products=TritonProducts())
    engine = on_device(folder, accelerator, enforce_eager=True, max_num_batched_tokens=24)
    assert run(engine, asked) == run(load(folder), asked)


@pytest.mark.parametrize("interpreted", [False, True], ids=["twins", "interpreted"])
def test_long_chunks_over_latents_are_expanded(
    interpreted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole prompts, those behind what is cached of them, and with decode rows beside them."""
    for module in (device, device_batch):
        monkeypatch.setattr(module, "LEAST_EXPANDED", 16)
    contexts, attend = list[int](), DeviceChunk.attend

    def noted(
        self: DeviceChunk, style: AttentionStyle, queries: Tensor, made: Tensor, width: int
    ) -> Tensor:
        contexts.append(made.shape[2])
        return attend(self, style, queries, made, width)

    monkeypatch.setattr(DeviceChunk, "attend", noted)
    folder = make_checkpoint(tmp_path, "deepseek_v3")
    prompts = [PROMPTS[3], PROMPTS[5]] if interpreted else [*PROMPTS, PROMPTS[6] + PROMPTS[3]]
    asked = requests(prompts, replace(GREEDY, max_tokens=3))
    accelerator = FakeAccelerator(TritonKernels()) if interpreted else FakeAccelerator()
    engine = on_device(folder, accelerator, max_num_batched_tokens=80, block_size=4)
    assert max(contexts) == 512, "they are compiled before anything is asked"
    contexts.clear()
    assert run(engine, asked) == run(load(folder), asked)
    assert len(contexts) > len(prompts)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA device")
@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_a_real_device(family: str, enforce_eager: bool, tmp_path: Path) -> None:
    """In float32, with kernels, graphs and steps begun ahead as they are served."""
    folder = make_checkpoint(tmp_path, family)
    engine = on_cuda(folder, enforce_eager=enforce_eager)
    assert run(engine, mixed(SAMPLINGS)) == run(load(folder), mixed(SAMPLINGS))


@pytest.mark.gpu
@pytest.mark.skipif(not begins_early(), reason="wants a device of capability 9.0")
@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_launches_that_overlap(family: str, enforce_eager: bool, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family)
    overlap_launches(on=True)
    try:
        engine = on_cuda(folder, enforce_eager=enforce_eager)
        for _ in range(3):
            assert run(engine, mixed(SAMPLINGS)) == run(load(folder), mixed(SAMPLINGS))
    finally:
        overlap_launches(on=False)


def on_cuda(folder: Path, *, enforce_eager: bool) -> TorchEngine:
    return load(
        folder,
        device="cuda",
        enforce_eager=enforce_eager,
        max_num_seqs=6,
        max_num_batched_tokens=48,
        kv_cache_memory_bytes=1 << 24,
    )
