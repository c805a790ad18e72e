"""A draft model saves steps and changes nothing, whatever it is and whatever it missed."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.attention.plan import Plan
from engine.request import Sampling
from engine.running.runner import ForwardOutput, Runner
from engine.scheduling.drafting import Pace
from engine.stepping.draft_model import DraftRecord, ModelDrafter
from engine.torch_engine import TorchEngine
from tests.fakes.adapters import make_adapter, named
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.drafter import drafted_by
from tests.fakes.driver import abort_some, eager, hand_over, load, prompt, requests, run
from tests.fakes.ranks import ranked
from tests.integration.test_engine_speculation import (
    SAMPLINGS,
    answers,
    samplings,
    tokens,
    told,
)

GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)
PROMPTS = [prompt(length) for length in (1, 7, 16, 17, 40, 90)]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another family with other weights, another vocabulary and fewer positions."""
    folder = tmp_path_factory.mktemp("stranger")
    return make_checkpoint(
        folder, "qwen3", seed=7, num_hidden_layers=1, vocab_size=400, max_position_embeddings=64
    )


@pytest.fixture(scope="module", params=["itself", "stranger"])
def draft(request: pytest.FixtureRequest, llama: Path) -> Path:
    folder: Path = llama if request.param == "itself" else request.getfixturevalue("stranger")
    return folder


def drafter_of(engine: TorchEngine) -> ModelDrafter:
    assert isinstance(engine.scheduler.drafter, ModelDrafter)
    return engine.scheduler.drafter


class Watched:
    """A runner that notes its plans."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.plans = runner, list[Plan]()

    device_sampler = None

    def run(self, plan: Plan) -> ForwardOutput:
        self.plans.append(plan)
        return self.runner.run(plan)


def watched(engine: TorchEngine) -> list[Plan]:
    drafter = drafter_of(engine)
    drafter.runner = Watched(drafter.runner)
    return drafter.runner.plans


@samplings
def test_the_tokens_are_the_same(llama: Path, draft: Path, kind: str) -> None:
    asked, engine = requests(PROMPTS, SAMPLINGS[kind]), load(llama, **drafted_by(draft))
    assert answers(engine, asked) == answers(load(llama), asked)
    made = engine.load
    assert made.draft_tokens > 20
    if draft == llama:  # noise, masks and penalties are those of the model
        assert made.accepted_tokens == made.draft_tokens
    else:
        assert made.accepted_tokens < made.draft_tokens


def test_a_draft_that_is_always_right_saves_most_steps(llama: Path) -> None:
    (request,), engine = requests(PROMPTS[-1:], GREEDY), load(llama, **drafted_by(llama))
    (said,) = told(engine, [request]).values()
    assert [len(one.tokens) for one in said] == [1, 5, 5, 5, 5, 3]
    assert engine.load.draft_tokens == 4 * 4 + 2, "none beyond max_tokens"


def test_no_draft_goes_on_behind_an_end(llama: Path) -> None:
    usual = answers(load(llama), requests(PROMPTS[-1:], GREEDY))[0]
    ended = replace(GREEDY, stop_token_ids=(usual[3],))
    (request,), engine = requests(PROMPTS[-1:], ended), load(llama, **drafted_by(llama))
    (said,) = told(engine, [request]).values()
    assert tokens(said) == usual[: usual.index(usual[3]) + 1]
    assert engine.load.draft_tokens == usual.index(usual[3])


def test_a_prompt_from_another_node_is_computed_for_the_draft_alone(llama: Path) -> None:
    source, sink = load(llama), load(llama, **drafted_by(llama))
    plans, asked = watched(sink), requests(PROMPTS, GREEDY)
    assert hand_over(source, sink, asked) == run(load(llama), asked)
    assert sink.load.accepted_tokens == sink.load.draft_tokens > 0
    assert sink.load.prompt_tokens == 0
    starts = [span.start for plan in plans for span in (*plan.singles, *plan.chunks)]
    assert starts.count(0) == len(asked)


@pytest.mark.parametrize("most", [5, 16, 33])
def test_a_batch_of_the_draft_is_as_large_as_one_of_the_model(llama: Path, most: int) -> None:
    engine = load(llama, max_num_batched_tokens=most, **drafted_by(llama))
    plans, asked = watched(engine), requests(PROMPTS, GREEDY)
    assert run(engine, asked) == run(load(llama), asked)
    assert max(len(plan.tokens) for plan in plans) == most
    for plan in plans:
        assert [span.length for span in plan.singles] == [1] * len(plan.singles)
        assert all(span.length > 1 for span in plan.chunks)
    assert engine.load.accepted_tokens == engine.load.draft_tokens > 0


def test_a_prompt_that_is_cached_is_not_computed_again(llama: Path) -> None:
    """Also behind drafts that came true, whose KV was made when they were drafted."""
    engine = load(llama, block_size=4, **drafted_by(llama))
    plans, first = watched(engine), requests([prompt(41)], GREEDY)
    (said,) = run(engine, first)
    before = len(plans)
    longer = (*prompt(41), *said)
    assert run(engine, requests([longer], GREEDY)) == run(
        load(llama), requests([longer], GREEDY)
    )
    assert engine.load.accepted_tokens == engine.load.draft_tokens
    begin = plans[before].chunks[0]
    cached = len(longer) // 4 * 4
    assert (begin.start, begin.start + begin.length) == (cached - 4, len(longer) + 1)


def test_a_block_that_others_share_is_not_cleared(llama: Path) -> None:
    """Less than a block of it might be filled in the same step."""
    engine = load(llama, block_size=16, max_num_batched_tokens=9, **drafted_by(llama))
    plain = load(llama, block_size=16)
    sampling, shared = replace(GREEDY, temperature=1.3, seed=3, max_tokens=60), prompt(44)
    asked = requests([(*shared, tail) for tail in range(4)], sampling)
    assert run(engine, asked) == run(plain, asked)
    assert engine.load.accepted_tokens == engine.load.draft_tokens > 0


def test_what_was_overwritten_is_computed_again(llama: Path) -> None:
    """A block's notes end with its content: other sequences had it in between."""
    engine = load(llama, block_size=4, max_model_len=64, max_num_seqs=1, **drafted_by(llama))
    plain = load(llama, block_size=4, max_model_len=64, max_num_seqs=1)
    for seed in (0, 1, 2, 0, 1, 0):
        asked = requests([prompt(37, seed)], GREEDY)
        assert run(engine, asked) == run(plain, asked)
    assert engine.load.accepted_tokens == engine.load.draft_tokens > 0


@pytest.mark.parametrize("kind", ["greedy", "seeded"])
def test_preempted_is_undisturbed(llama: Path, draft: Path, kind: str) -> None:
    token_bytes = drafter_bytes(llama, draft)
    tight = {"max_model_len": 132, "block_size": 4, "kv_cache_memory_bytes": 132 * token_bytes}
    engine = eager(load(llama, **tight, **drafted_by(draft)))
    asked = requests(PROMPTS, SAMPLINGS[kind])
    assert answers(engine, asked) == answers(load(llama), asked)
    assert engine.load.preemptions > 0
    if draft == llama:
        assert engine.load.accepted_tokens == engine.load.draft_tokens > 0


def drafter_bytes(llama: Path, draft: Path) -> int:
    """Bytes of a token's KV, in both memories."""
    both = load(llama, block_size=1), load(draft, block_size=1)
    return sum(one.kv_regions[0].block_bytes for one in both)


@pytest.mark.parametrize(("most", "drafts", "limit"), [(None, 4, 6), (None, 9, 3), (5, 4, 5)])
def test_no_drafts_are_made_for_a_batch_of_many(
    llama: Path, most: int | None, drafts: int, limit: int
) -> None:
    """By default on a CPU: together with their drafts they have up to 32 rows."""
    settings = {
        "model": str(llama),
        "num_speculative_tokens": drafts,
        "disable_by_batch_size": most,
    }
    engine = load(llama, speculative_config=json.dumps(settings))
    for number, request in enumerate(requests([*PROMPTS, *PROMPTS[:2]], GREEDY)):
        engine.generate(replace(request, sampling=replace(GREEDY, max_tokens=10 + 8 * number)))
    drafting = set[int]()
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        decoding = sum(one.ends for one in engine.scheduler.batch)
        if any(one.drafts for one in engine.scheduler.batch):
            drafting.add(decoding)
        engine.step()
    assert max(drafting) == limit


def test_a_draft_ends_where_its_model_ends(llama: Path, stranger: Path) -> None:
    """The stranger has 64 positions, and the model 512."""
    engine = load(llama, **drafted_by(stranger))
    plans, asked = watched(engine), requests([prompt(50)], replace(GREEDY, max_tokens=100))
    assert run(engine, asked) == run(load(llama), asked)
    ends = [one.start + one.length for plan in plans for one in (*plan.singles, *plan.chunks)]
    assert 50 < max(ends) <= 64
    none = load(llama, **drafted_by(stranger))
    assert run(none, requests([prompt(64)], GREEDY))
    assert none.load.draft_tokens == 0


def test_tokens_that_a_draft_model_does_not_have_are_not_drafted(
    llama: Path, tmp_path: Path
) -> None:
    small = make_checkpoint(tmp_path / "small", num_hidden_layers=1, vocab_size=300)
    engine = load(llama, **drafted_by(small))
    for request in requests(PROMPTS, replace(GREEDY, temperature=9.0)):
        engine.generate(request)
    drafted = list[int]()
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        drafted += [token for one in engine.scheduler.batch for token in one.drafts]
        engine.step()
    assert drafted
    assert max(drafted) < 300


def test_with_adapters_the_base_drafts(llama: Path, tmp_path: Path) -> None:
    module = named(make_adapter(llama, tmp_path / "one"))
    (name,) = (one.partition("=")[0] for one in module)
    asked = [
        replace(one, adapter=name if index % 2 else None)
        for index, one in enumerate(requests(PROMPTS, GREEDY))
    ]
    engine = load(llama, lora_modules=module, **drafted_by(llama))
    assert run(engine, asked) == run(load(llama, lora_modules=module), asked)
    assert 0 < engine.load.accepted_tokens < engine.load.draft_tokens


def test_aborted_on_the_way(llama: Path, draft: Path) -> None:
    abort_some(load(llama, **drafted_by(draft)), requests(PROMPTS, GREEDY))


@samplings
def test_steps_of_a_device(llama: Path, draft: Path, kind: str) -> None:
    """The draft model has graphs of its own."""
    accelerator = FakeAccelerator()
    engine = on_device(llama, accelerator, **drafted_by(draft))
    asked = requests(PROMPTS, SAMPLINGS[kind])
    assert answers(engine, asked) == answers(load(llama), asked)
    assert engine.load.draft_tokens > 0
    if draft == llama and kind == "greedy":
        assert engine.load.accepted_tokens == engine.load.draft_tokens


@pytest.mark.parametrize(
    ("ahead", "tokens", "computed"),
    [
        ((7, 8, 9), (1, 2, 3, 7, 8, 9, 4), 6),
        ((7, 8, 9), (1, 2, 3, 7, 8, 4), 5),
        ((7, 8, 9), (1, 2, 3, 4), 3),
        ((7, 8, 9), (1, 2, 3, 7, 5, 9, 6, 6), 4),  # it rested meanwhile
        ((), (1, 2, 3, 7), 3),
        ((7,), (1, 2, 3), 2),  # as if it was drafted twice
    ],
)
def test_draft_kv_is_right_up_to_the_first_wrong_draft(
    ahead: tuple[int, ...], tokens: tuple[int, ...], computed: int
) -> None:
    record = DraftRecord(Pace(4, 4), 3, ahead)
    record.settle(tokens)
    assert (record.computed, record.ahead) == (computed, ())


def test_only_the_leading_rank_drafts(llama: Path) -> None:
    asked = requests(PROMPTS, GREEDY)
    with ranked(llama, 2, (), **drafted_by(llama)) as engine:
        assert run(engine, asked) == run(load(llama), asked)
        assert engine.load.accepted_tokens == engine.load.draft_tokens > 0
