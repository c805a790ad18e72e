"""Models with a state, which begin at copies of states: nothing is said otherwise."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from engine.request import Request, Sampling
from engine.stepping.ahead import AheadStepper
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import (
    assert_idle,
    eager,
    hand_over,
    load,
    prompt,
    requests,
    run,
)
from tests.fakes.ranks import ranked

LONG, SYSTEM = prompt(100), prompt(100)[:85]
TURNS = [LONG[:40], LONG[:60], LONG[:61], LONG[:65], LONG]
BRANCHES = [(*SYSTEM, *prompt(length)) for length in (30, 31, 1)]
PROMPTS, BEGUN_BEHIND = [*TURNS, *BRANCHES], [0, 32, 48, 48, 64, 64, 80, 80]
GREEDY = Sampling(max_tokens=12, temperature=0, ignore_eos=True)
CHATS, ANSWER = (
    [prompt(21), prompt(30), prompt(16)],
    Sampling(40, temperature=0, ignore_eos=True),
)
BEHIND_ANSWERS = 3 * (40 + 9) + 21 + 30 + 16 - (48 + 64 + 48)


class Chats(NamedTuple):
    """What models say in two turns."""

    first: list[list[int]]
    second: list[list[int]]


@pytest.fixture(scope="module", params=["qwen3_5_text", "nemotron_h"])
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hybrid"), request.param)


@pytest.fixture(scope="module")
def alone(hybrid: Path) -> list[list[int]]:
    engine = load(hybrid, enable_prefix_caching=False)
    said = [run(engine, [one])[0] for one in requests(PROMPTS, GREEDY)]
    assert engine.load.prompt_tokens == sum(map(len, PROMPTS))
    return said


def saving(engine: TorchEngine, tokens: int = 16) -> TorchEngine:
    """The engine, which copies states however few tokens that saves."""
    kept = engine.scheduler.sequences.kv.snapshots
    assert kept is not None
    kept.least_saved = tokens
    return engine


def one_by_one(engine: TorchEngine, asked: list[Request]) -> list[list[int]]:
    return [run(engine, [one])[0] for one in asked]


def block_bytes(folder: Path) -> int:
    return load(folder).kv_regions[0].block_bytes


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("chunk", [7, 100])
def test_turns_and_branches(
    hybrid: Path, alone: list[list[int]], chunk: int, kernels: str
) -> None:
    engine = saving(load(hybrid, max_num_batched_tokens=chunk, cpu_kernels=kernels))
    engine.memory.block_rows.fill_(float("nan"))
    assert one_by_one(engine, requests(PROMPTS, GREEDY)) == alone
    assert engine.load.prompt_tokens == sum(map(len, PROMPTS)) - sum(BEGUN_BEHIND)
    assert run(engine, requests(PROMPTS, GREEDY)) == alone
    assert_idle(engine)


def test_a_step_that_saves_little_is_not_made(hybrid: Path, alone: list[list[int]]) -> None:
    engine = load(hybrid)
    assert one_by_one(engine, requests(PROMPTS, GREEDY)) == alone
    assert engine.load.prompt_tokens == sum(map(len, PROMPTS))


def test_preempted_is_undisturbed(hybrid: Path, alone: list[list[int]]) -> None:
    preemptions = 0
    for blocks in (18, 20, 22):
        settings = {"max_model_len": 128, "kv_cache_memory_bytes": blocks * block_bytes(hybrid)}
        engine = eager(saving(load(hybrid, **settings)))
        for _ in range(2):
            assert run(engine, requests(PROMPTS, GREEDY)) == alone
        preemptions += engine.load.preemptions
    assert preemptions > 0


@pytest.mark.parametrize("graphs", [True, False])
def test_on_a_device(hybrid: Path, alone: list[list[int]], graphs: bool) -> None:
    """States are copied between steps that are launched ahead."""
    engine = on_device(hybrid, FakeAccelerator(draws=True), enforce_eager=not graphs)
    saving(engine)
    assert isinstance(engine.stepper, AheadStepper)
    engine.memory.block_rows.fill_(float("nan"))
    for _ in range(2):
        assert run(engine, requests(PROMPTS, GREEDY)) == alone
    assert engine.load.prompt_tokens < 2 * sum(map(len, PROMPTS)) - sum(map(len, TURNS))
    one_token_left = TURNS.index(LONG[:65])
    asked = requests(PROMPTS, GREEDY)[one_token_left]
    assert run(engine, [asked]) == [alone[one_token_left]]


def test_each_rank_copies_its_part(hybrid: Path, alone: list[list[int]]) -> None:
    with ranked(hybrid, 2) as engine:
        saving(engine)
        for _ in range(2):
            assert run(engine, requests(PROMPTS, GREEDY)) == alone
        assert engine.load.prompt_tokens < 2 * sum(map(len, PROMPTS))


def test_what_began_at_a_copy_is_handed_over(hybrid: Path, alone: list[list[int]]) -> None:
    source, sink = saving(load(hybrid)), saving(load(hybrid))
    for _ in range(2):
        assert hand_over(source, sink, requests(PROMPTS, GREEDY)) == alone
    assert source.load.prompt_tokens < 2 * sum(map(len, PROMPTS))
    assert_idle(source)
    assert_idle(sink)


def turns(prompts: list[tuple[int, ...]], said: list[list[int]]) -> list[Request]:
    """What chats say after these answers."""
    both = zip(prompts, said, strict=True)
    return requests([(*asked, *answer, *prompt(9)) for asked, answer in both], ANSWER)


@pytest.fixture(scope="module")
def chats(hybrid: Path) -> Chats:
    engine = load(hybrid, enable_prefix_caching=False)
    first = one_by_one(engine, requests(CHATS, ANSWER))
    return Chats(first, one_by_one(engine, turns(CHATS, first)))


def in_turn(engine: TorchEngine, chats: Chats) -> int:
    """Check both turns of all chats at once; tokens computed of the prompts of the second."""
    assert run(engine, requests(CHATS, ANSWER)) == chats.first
    before = engine.load.prompt_tokens
    assert run(engine, turns(CHATS, chats.first)) == chats.second
    return engine.load.prompt_tokens - before


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_turns_begin_in_answers(hybrid: Path, chats: Chats, kernels: str) -> None:
    engine = saving(load(hybrid, cpu_kernels=kernels))
    engine.memory.block_rows.fill_(float("nan"))
    assert in_turn(engine, chats) == BEHIND_ANSWERS


@pytest.mark.parametrize("graphs", [True, False])
def test_turns_begin_in_answers_of_a_device(hybrid: Path, chats: Chats, graphs: bool) -> None:
    engine = on_device(hybrid, FakeAccelerator(draws=True), enforce_eager=not graphs)
    assert isinstance(engine.stepper, AheadStepper)
    engine.memory.block_rows.fill_(float("nan"))
    assert in_turn(saving(engine), chats) == BEHIND_ANSWERS


def test_ranks_copy_answers(hybrid: Path, chats: Chats) -> None:
    with ranked(hybrid, 2) as engine:
        assert in_turn(saving(engine), chats) == BEHIND_ANSWERS


def test_answers_of_a_decode_node_are_copied(hybrid: Path, chats: Chats) -> None:
    source, sink = saving(load(hybrid)), saving(load(hybrid))
    assert hand_over(source, sink, requests(CHATS, ANSWER)) == chats.first
    assert run(sink, turns(CHATS, chats.first)) == chats.second
    assert sink.load.prompt_tokens == BEHIND_ANSWERS
    assert_idle(source)


@pytest.mark.parametrize("device", [True, False])
def test_preempted_and_aborted_answers(hybrid: Path, chats: Chats, device: bool) -> None:
    most = {"max_model_len": 128, "kv_cache_memory_bytes": 15 * block_bytes(hybrid)}
    there = on_device(hybrid, FakeAccelerator(draws=True), **most) if device else None
    engine = eager(saving(there or load(hybrid, **most)))
    for request in requests(CHATS, ANSWER):
        engine.generate(request)
    for _ in range(20):
        engine.schedule()
        engine.step()
    for name in tuple(engine.scheduler.sequences.known):
        engine.release(name)
    assert_idle(engine)
    in_turn(engine, chats)
    assert engine.load.preemptions > 0


def test_salts_have_states_of_their_own(hybrid: Path) -> None:
    engine = saving(load(hybrid))
    salted = [
        Request(one.request_id, one.prompt, one.sampling, cache_salt=salt)
        for one, salt in zip(requests([SYSTEM] * 3, GREEDY), ("a", "b", "a"), strict=True)
    ]
    one_by_one(engine, salted)
    assert engine.load.prompt_tokens == 3 * len(SYSTEM) - 80


@torch.inference_mode()
def test_copies_are_of_whole_blocks(hybrid: Path) -> None:
    memory = load(hybrid).memory
    memory.bytes_of_blocks.copy_(torch.arange(memory.num_blocks)[:, None])
    memory.copy([(1, 2), (2, 3)])
    assert memory.bytes_of_blocks[:5].unique(dim=1).squeeze(1).tolist() == [0, 1, 1, 1, 4]
