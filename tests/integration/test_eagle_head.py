"""An EAGLE-3 head drafts what transformers' modules do, and changes no token."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from engine.checkpoints.checkpoint import WEIGHTS
from engine.models.eagle_head import EagleHead
from engine.request import Sampling
from engine.running.device import DeviceRunner
from engine.running.head_runner import OwnHeadRunner
from engine.running.warming import row_counts
from engine.scheduling.drafting import Pace
from engine.stepping.head_drafter import HeadDrafter
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import DEVICE, FakeAccelerator, on_device
from tests.fakes.draft_heads import Compared
from tests.fakes.driver import abort_some, hand_over, load, prompt, requests, run
from tests.fakes.eagle_heads import EagleReference, eagled, make_eagle
from tests.fakes.ranks import ranked
from tests.integration.test_engine_speculation import SAMPLINGS, answers, samplings

GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)
PROMPTS = [prompt(length) for length in (1, 7, 16, 17, 40, 90)]
LAYERS = 6
FORMS: dict[str, dict[str, object]] = {
    "its authors'": {"words": 96},
    "all tokens": {},
    "others'": {"layer": "layers.0", "words": 96, "norm_before_residual": True},
    "an own embedding": {"embeds": True},
    "layers named": {"eagle_aux_hidden_state_layer_ids": [0, 5, 1, 5]},
    "layers named within": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 1, 3]}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_eagle(tmp_path_factory.mktemp("head") / "head", words=96)


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many drafts as there may be, whatever became of the last ones."""
    monkeypatch.setattr(Pace, "allowed", lambda pace, _seq, most: max(0, min(pace.most, most)))


def compared(engine: TorchEngine, model: Path, head: Path) -> Compared:
    return Compared.watch(engine, EagleReference.of(model, head))


@pytest.mark.parametrize("form", FORMS)
def test_drafts_are_those_of_the_modules(model: Path, tmp_path: Path, form: str) -> None:
    head = make_eagle(tmp_path / "head", **FORMS[form])  # type: ignore[arg-type]
    engine, asked = load(model, **eagled(head)), requests(PROMPTS, GREEDY)
    judge = compared(engine, model, head)
    assert run(engine, asked) == run(load(model), asked)
    assert judge.drafts > 100


@pytest.mark.parametrize(("family", "size"), [("qwen3", 16), ("gpt_oss", 16), ("glm4", 16)])
def test_other_families_have_heads_as_llamas_have(
    tmp_path: Path, family: str, size: int
) -> None:
    model = make_checkpoint(
        tmp_path / "model", family, num_hidden_layers=LAYERS, hidden_size=32
    )
    head = make_eagle(tmp_path / "head", words=96, head_dim=size)
    engine, asked = load(model, **eagled(head)), requests(PROMPTS, GREEDY)
    judge = compared(engine, model, head)
    assert run(engine, asked) == run(load(model), asked)
    assert judge.drafts > 100


@pytest.mark.parametrize("most", [5, 33])
def test_prompts_in_parts(model: Path, head: Path, most: int) -> None:
    engine = load(model, max_num_batched_tokens=most, block_size=4, **eagled(head, 2))
    judge, asked = compared(engine, model, head), requests(PROMPTS, GREEDY)
    assert run(engine, asked) == run(load(model), asked)
    assert judge.drafts > 20


def test_a_hand_over_has_the_heads_kv(model: Path, head: Path) -> None:
    source, sink = (load(model, block_size=4, **eagled(head)) for _ in range(2))
    judge, asked = compared(sink, model, head), requests(PROMPTS, GREEDY)
    assert hand_over(source, sink, asked) == run(load(model), asked)
    assert judge.drafts > 100
    assert sink.load.prompt_tokens == 0


@pytest.mark.parametrize("devices", [0, 2])
def test_each_rank_has_its_part_of_the_head(model: Path, head: Path, devices: int) -> None:
    asked, accelerators = requests(PROMPTS, GREEDY), [FakeAccelerator() for _ in range(devices)]
    settings = {**(DEVICE if devices else {}), **eagled(head)}
    with ranked(model, 2, accelerators, **settings) as engine:
        judge = compared(engine, model, head)
        assert run(engine, asked) == run(load(model), asked)
        assert judge.drafts > 100


@pytest.mark.parametrize("is_eager", [False, True])
def test_steps_of_a_device(model: Path, head: Path, is_eager: bool) -> None:
    """What the head reads of the model's layers is kept by graphs, whole and in pieces."""
    engine = on_device(model, FakeAccelerator(), enforce_eager=is_eager, **eagled(head))
    assert isinstance(drafter := engine.scheduler.drafter, HeadDrafter)
    assert isinstance(drafter.runner, OwnHeadRunner)
    assert isinstance(runner := drafter.runner.runner, DeviceRunner)
    assert (runner.graphs is None) is is_eager
    judge, asked = compared(engine, model, head), requests(PROMPTS, GREEDY)
    assert run(engine, asked) == run(load(model), asked)
    assert judge.drafts > 100


def test_states_are_taken_in_before_any_is_asked_for(
    model: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of a device are compiled for numbers of rows."""
    counts, take_in = list[int](), EagleHead.take_in

    def noted(self: EagleHead, states: torch.Tensor, *, own: bool) -> None:
        counts.append(len(states))
        take_in(self, states, own=own)

    monkeypatch.setattr(EagleHead, "take_in", noted)
    load(model, **eagled(head))
    assert not counts
    on_device(model, None, **eagled(head))
    assert counts == row_counts(DEVICE["max_num_batched_tokens"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA device")
@pytest.mark.parametrize("is_eager", [False, True])
def test_a_real_device(model: Path, head: Path, is_eager: bool) -> None:
    """In float32."""
    room = {"device": "cuda", "enforce_eager": is_eager, "kv_cache_memory_bytes": 1 << 24}
    sizes = {"max_num_seqs": 6, "max_num_batched_tokens": 48}
    engine = load(model, **room, **sizes, **eagled(head))
    judge, asked = compared(engine, model, head), requests(PROMPTS, GREEDY)
    assert run(engine, asked) == run(load(model), asked)
    assert judge.drafts > 100


@samplings
def test_the_tokens_are_the_same(model: Path, head: Path, kind: str) -> None:
    asked, engine = requests(PROMPTS, SAMPLINGS[kind]), load(model, **eagled(head))
    assert answers(engine, asked) == answers(load(model), asked)
    assert engine.load.draft_tokens > 0


def test_tokens_that_a_head_does_not_have_are_not_drafted(model: Path, tmp_path: Path) -> None:
    few = make_eagle(tmp_path / "head", words=20)
    more = load_file(few / WEIGHTS)["d2t"]
    words = set((more + torch.arange(20)).tolist())
    engine = load(model, **eagled(few))
    for request in requests(PROMPTS, replace(GREEDY, temperature=9.0)):
        engine.generate(request)
    drafted = set[int]()
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        drafted.update(token for one in engine.scheduler.batch for token in one.drafts)
        engine.step()
    assert len(drafted) > 10
    assert drafted <= words


def test_aborted_on_the_way(model: Path, head: Path) -> None:
    abort_some(load(model, **eagled(head)), requests(PROMPTS, GREEDY))
