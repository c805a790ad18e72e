"""A model's own draft head drafts what transformers' modules do, and changes no token.

The drafts are as sensitive as can be: a head that knows nothing drafts from all that it has
read, so KV of its own that is missing or false anywhere gives another draft.
"""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from engine.request import PoolingRequest, RequestId, Sampling
from engine.running.device import DeviceRunner
from engine.running.head_runner import OwnHeadRunner
from engine.scheduling.drafting import Pace
from engine.stepping.head_drafter import HeadDrafter
from engine.tiers.book import TierBook
from engine.tiers.host_book import HostBook
from engine.tiers.host_memory import HostMemory
from engine.tiers.tiers import Tiers
from engine.torch_engine import TorchEngine
from tests.fakes.adapters import make_adapter, named
from tests.fakes.device import DEVICE, FakeAccelerator, on_device
from tests.fakes.draft_heads import Compared, Reference, headed, make_head_checkpoint
from tests.fakes.driver import abort_some, eager, hand_over, load, prompt, requests, run
from tests.fakes.ranks import ranked
from tests.integration.test_engine_speculation import SAMPLINGS, answers, samplings

GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)
PROMPTS = [prompt(length) for length in (1, 7, 16, 17, 40, 90)]
FAMILIES = ["deepseek_v3", "glm4_moe", "glm4_moe_lite"]


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its head knows nothing."""
    return make_head_checkpoint(tmp_path_factory.mktemp("strange"))


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its head is always right."""
    return make_head_checkpoint(tmp_path_factory.mktemp("right"), right=True)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many drafts as there may be, whatever became of the last ones."""
    monkeypatch.setattr(Pace, "allowed", lambda pace, _seq, most: max(0, min(pace.most, most)))


def compared(engine: TorchEngine, made: Path) -> Compared:
    return Compared.watch(engine, Reference.of(made))


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_those_of_the_modules(tmp_path: Path, family: str) -> None:
    made = make_head_checkpoint(tmp_path, family)
    engine, asked = load(made, **headed()), requests(PROMPTS, GREEDY)
    judge = compared(engine, made)
    assert run(engine, asked) == run(load(made), asked)
    assert judge.drafts > 100
    assert engine.load.accepted_tokens < engine.load.draft_tokens


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("most", [5, 16, 33])
def test_prompts_in_parts(strange: Path, most: int) -> None:
    engine = load(strange, max_num_batched_tokens=most, block_size=4, **headed(2))
    judge, asked = compared(engine, strange), requests(PROMPTS, GREEDY)
    assert run(engine, asked) == run(load(strange), asked)
    assert judge.drafts > 20


@pytest.mark.usefixtures("restless")
def test_a_hand_over_has_the_heads_kv(strange: Path) -> None:
    """Whole blocks and begun ones; only behind the token from elsewhere there is no draft."""
    source, sink = (load(strange, block_size=4, **headed()) for _ in range(2))
    judge, asked = compared(sink, strange), requests(PROMPTS, GREEDY)
    assert hand_over(source, sink, asked) == run(load(strange), asked)
    assert judge.drafts > 100
    assert source.load.draft_tokens == 0
    assert sink.load.prompt_tokens == 0


@pytest.mark.usefixtures("restless")
def test_a_cached_prefix_has_the_heads_kv(strange: Path) -> None:
    """Also where it ends with an answer, whose last drafts were not all accepted."""
    engine = load(strange, block_size=4, **headed())
    judge, first = compared(engine, strange), requests([prompt(41)], GREEDY)
    (said,) = run(engine, first)
    before = engine.load.prompt_tokens
    longer = requests([(*prompt(41), *said, *prompt(5))], GREEDY)
    assert run(engine, longer) == run(load(strange), longer)
    assert engine.load.prompt_tokens - before < 12
    assert judge.drafts > 20


@pytest.mark.usefixtures("restless")
def test_kv_from_a_lower_tier_has_the_heads(strange: Path) -> None:
    room = {"max_model_len": 132, "kv_cache_memory_bytes": 40 * block_bytes(strange)}
    engine = load(strange, block_size=4, **room, **headed())
    blocks = engine.memory.bytes_of_blocks
    book = TierBook(HostBook(100), blocks.shape[1])
    engine.attach_tiers(Tiers(book, HostMemory(blocks, 100), None, clock=lambda: 0.0))
    judge = compared(engine, strange)
    for number in (0, 1, 2, 0, 1):
        asked = requests([prompt(90, number)], GREEDY)
        assert run(engine, asked) == run(load(strange), asked)
    assert engine.load.tiers[0].loaded > 20
    assert judge.drafts > 50


def block_bytes(made: Path) -> int:
    return load(made, block_size=4, **headed()).kv_regions[0].block_bytes


@pytest.mark.usefixtures("restless")
def test_preempted_is_undisturbed(strange: Path) -> None:
    tight = {"max_model_len": 132, "kv_cache_memory_bytes": 33 * block_bytes(strange)}
    engine = eager(load(strange, block_size=4, **tight, **headed()))
    judge, asked = compared(engine, strange), requests(PROMPTS, GREEDY)
    assert run(engine, asked) == run(load(strange), asked)
    assert engine.load.preemptions > 0
    assert judge.drafts > 50


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("devices", [0, 2])
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_each_rank_has_its_part_of_the_head(tmp_path: Path, family: str, devices: int) -> None:
    """On devices with graphs of it."""
    made = make_head_checkpoint(tmp_path, family, experts=not devices)
    asked, accelerators = requests(PROMPTS, GREEDY), [FakeAccelerator() for _ in range(devices)]
    with ranked(made, 2, accelerators, **(DEVICE if devices else {}), **headed()) as engine:
        judge = compared(engine, made)
        assert run(engine, asked) == run(load(made), asked)
        assert judge.drafts > 100


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_steps_of_a_device(tmp_path: Path, family: str, experts: bool, is_eager: bool) -> None:
    """The head has graphs of its own, over the same KV memory; not where experts are looped."""
    made = make_head_checkpoint(tmp_path, family, experts=experts)
    engine = on_device(made, FakeAccelerator(), enforce_eager=is_eager, **headed())
    assert isinstance(drafter := engine.scheduler.drafter, HeadDrafter)
    assert isinstance(drafter.runner, OwnHeadRunner)
    assert isinstance(runner := drafter.runner.runner, DeviceRunner)
    assert (runner.graphs is None) is (is_eager or experts)
    judge, asked = compared(engine, made), requests(PROMPTS, GREEDY)
    assert run(engine, asked) == run(load(made), asked)
    assert judge.drafts > 100


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA device")
@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_real_device(right: Path, tmp_path: Path, family: str, is_eager: bool) -> None:
    """In float32; a head that is right is as right there."""
    settings = {"max_num_seqs": 6, "max_num_batched_tokens": 48}
    room = {"device": "cuda", "enforce_eager": is_eager, "kv_cache_memory_bytes": 1 << 24}
    asked = requests(PROMPTS, GREEDY)
    for made in (right, make_head_checkpoint(tmp_path, family)):
        engine = load(made, **settings, **room, **headed())
        assert run(engine, asked) == run(load(made), asked)
        told = engine.load
        assert told.draft_tokens > 0
        assert (told.accepted_tokens == told.draft_tokens) is (made == right)


@samplings
def test_the_tokens_are_the_same(strange: Path, right: Path, kind: str) -> None:
    asked = requests(PROMPTS, SAMPLINGS[kind])
    for made in (strange, right):
        engine = load(made, **headed())
        assert answers(engine, asked) == answers(load(made), asked)
        told = engine.load
        assert told.draft_tokens > 0
        if made == right:  # noise, masks and penalties are those of the model
            assert told.accepted_tokens == told.draft_tokens > 100
        else:
            assert told.accepted_tokens < told.draft_tokens


def test_a_head_that_is_always_right_saves_most_steps(right: Path) -> None:
    (asked,), engine = requests(PROMPTS[-1:], GREEDY), load(right, **headed())
    engine.generate(asked)
    said = list[int]()
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        said += [len(one.tokens) for one in engine.step().sampled]
    assert said == [1, 2, 3, 5, 5, 5, 3]


def test_prompts_that_differ_behind_a_shared_block(right: Path, strange: Path) -> None:
    """The head's last KV of the block is that of the first one's next token."""
    for made in (right, strange):
        engine, shared = load(made, block_size=16, **headed()), prompt(48)
        asked = requests([(*shared, tail) for tail in range(4)], GREEDY)
        assert run(engine, asked[:1]) == run(load(made), asked[:1])
        assert run(engine, asked[1:]) == run(load(made), asked[1:])
        assert engine.load.draft_tokens > 0


def test_no_drafts_are_made_for_a_batch_of_many(right: Path) -> None:
    for settings, limit in ((headed(4), 6), (headed(4, disable_by_batch_size=3), 3)):
        engine = load(right, **settings)
        for number, one in enumerate(requests([*PROMPTS, *PROMPTS[:2]], GREEDY)):
            engine.generate(replace(one, sampling=replace(GREEDY, max_tokens=10 + 8 * number)))
        drafting = set[int]()
        while engine.load.waiting or engine.load.running:
            engine.schedule()
            if any(one.drafts for one in engine.scheduler.batch):
                drafting.add(len(engine.scheduler.batch))
            engine.step()
        assert max(drafting) == limit


@pytest.mark.usefixtures("restless")
def test_beside_prompts_that_are_pooled(strange: Path) -> None:
    """They draw nothing, and their blocks may be another's prefix."""
    engine = load(strange, block_size=4, **headed())
    judge, asked = compared(engine, strange), requests([(*prompt(40), 5, 6)], GREEDY)
    engine.embed(PoolingRequest(RequestId("pooled"), asked[0].prompt))
    engine.schedule()
    assert engine.step().pooled
    assert run(engine, asked) == run(load(strange), asked)
    assert engine.load.prompt_tokens < 40 + 12
    assert judge.drafts > 10


def test_with_adapters_the_head_is_the_base_models(tmp_path: Path) -> None:
    made = make_head_checkpoint(tmp_path, "glm4_moe")
    module = named(make_adapter(made, tmp_path / "one", target_modules=["q_proj", "o_proj"]))
    (name,) = (one.partition("=")[0] for one in module)
    asked = [
        replace(one, adapter=name if index % 2 else None)
        for index, one in enumerate(requests(PROMPTS, GREEDY))
    ]
    engine = load(made, lora_modules=module, **headed())
    assert run(engine, asked) == run(load(made, lora_modules=module), asked)
    assert engine.load.draft_tokens > 0


def test_aborted_on_the_way(right: Path) -> None:
    abort_some(load(right, **headed()), requests(PROMPTS, GREEDY))
