"""A device draws the tokens of a draft one behind the other: those that the host would draw.

The fake device notes in which order it draws, and when the host reads.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.request import Grammar, Request, Sampling
from engine.scheduling.drafting import Drafter, Pace
from engine.scheduling.sequence import Sequence as Seq
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import VOCABULARY, make_checkpoint
from tests.fakes.device import DEVICE, FakeAccelerator, on_device
from tests.fakes.draft_heads import headed, make_head_checkpoint
from tests.fakes.drafter import drafted_by
from tests.fakes.driver import load, prompt, requests, run
from tests.fakes.eagle_heads import eagled, make_eagle
from tests.fakes.ranks import ranked

MOST = 4
PROMPTS = [prompt(length) for length in (1, 7, 16, 17, 40, 64)]
GREEDY = Sampling(max_tokens=14, temperature=0, ignore_eos=True)
SEEDED = replace(GREEDY, temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=5)
PENALISED = replace(SEEDED, repetition_penalty=1.3)
BY_GRAMMAR = replace(SEEDED, grammar=Grammar("regex", "[a-z0-9 ]{60,90}"))
Made = Mapping[tuple[str, int], Sequence[int]]


@dataclass
class Watched:
    """Notes what a drafter makes, and what the device did meanwhile."""

    drafter: Drafter
    accelerator: FakeAccelerator | None = None
    made: dict[tuple[str, int], Sequence[int]] = field(default_factory=dict)
    done: list[list[str]] = field(default_factory=list)

    @classmethod
    def watch(
        cls, engine: TorchEngine, accelerator: FakeAccelerator | None = None
    ) -> "Watched":
        assert engine.scheduler.drafter is not None
        engine.scheduler.drafter = one = cls(engine.scheduler.drafter, accelerator)
        return one

    def wanted(self, seq: Seq, most: int) -> int:
        return self.drafter.wanted(seq, most)

    def rests(self, seqs: Iterable[Seq]) -> bool:
        return self.drafter.rests(seqs)

    def draft(self, granted: Mapping[Seq, int]) -> Mapping[Seq, Sequence[int]]:
        begun = 0 if self.accelerator is None else len(self.accelerator.order)
        made = self.drafter.draft(granted)
        for seq, tokens in made.items():
            self.made[seq.request_id, len(seq.tokens)] = list(tokens)
        if self.accelerator is not None:
            self.done.append(self.accelerator.order[begun:])
        return made

    def record_acceptance(self, seq: Seq, drafted: int, accepted: int) -> None:
        self.drafter.record_acceptance(seq, drafted, accepted)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many drafts as there may be, whatever became of the last ones."""
    monkeypatch.setattr(Pace, "allowed", lambda pace, _seq, most: max(0, min(pace.most, most)))
    monkeypatch.setattr(Pace, "rests", lambda _pace, _seq: False)


@pytest.fixture(scope="module", params=["head", "eagle", "model", "model of fewer words"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Mapping[str, str]]:
    """A checkpoint, and settings for what drafts for it: it draws other tokens often."""
    folder = tmp_path_factory.mktemp("made")
    if request.param == "head":
        model = make_head_checkpoint(folder / "model", "glm4_moe", experts=False)
        return model, headed(MOST)
    model = make_checkpoint(folder / "model", num_hidden_layers=6)
    if request.param == "eagle":
        return model, eagled(make_eagle(folder / "head", words=96), MOST)
    words = 100 if request.param == "model of fewer words" else VOCABULARY
    draft = make_checkpoint(folder / "draft", num_hidden_layers=1, seed=3, vocab_size=words)
    return model, drafted_by(draft, MOST)


def asked(sampling: Sampling) -> list[Request]:
    """Answers of unlike lengths: at the end some have room for fewer drafts."""
    return [
        replace(one, sampling=replace(sampling, max_tokens=sampling.max_tokens - index))
        for index, one in enumerate(requests(PROMPTS, sampling))
    ]


def drafts_of(
    folder: Path, settings: Mapping[str, str], wishes: list[Request], *, draws: bool
) -> Watched:
    accelerator = FakeAccelerator(draws=draws)
    engine = on_device(folder, accelerator, **settings)
    accelerator.begin_anew()
    watched = Watched.watch(engine, accelerator)
    assert run(engine, wishes) == run(load(folder), wishes)
    assert watched.made
    return watched


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_drafts_are_those_that_the_host_draws(
    made: tuple[Path, Mapping[str, str]], sampling: Sampling
) -> None:
    wishes = asked(sampling)
    ours = drafts_of(*made, wishes, draws=True)
    assert ours.made == drafts_of(*made, wishes, draws=False).made
    assert {len(tokens) for tokens in ours.made.values()} == {1, 2, 3, MOST}


@pytest.mark.usefixtures("restless")
def test_the_host_reads_when_all_passes_are_launched(
    made: tuple[Path, Mapping[str, str]],
) -> None:
    watched = drafts_of(*made, asked(GREEDY), draws=True)
    longest = max(watched.done, key=len)
    assert longest.count("read") == MOST
    assert longest[-MOST:] == ["read"] * MOST
    assert longest.count("draw") >= MOST - 1  # a head's first is behind the model's step


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("shaped", [PENALISED, BY_GRAMMAR], ids=["penalised", "by grammar"])
def test_a_batch_whose_draws_depend_on_drafts_is_drawn_by_the_host(
    made: tuple[Path, Mapping[str, str]], shaped: Sampling
) -> None:
    """As long as there is such a sequence; the others are drawn with it."""
    plain, other = asked(GREEDY), asked(shaped)
    wishes = [*plain[:3], *other[3:]]
    ours = drafts_of(*made, wishes, draws=True)
    assert ours.made == drafts_of(*made, wishes, draws=False).made


@pytest.mark.usefixtures("restless")
def test_a_draft_ends_with_a_token_that_ends_the_answer(
    made: tuple[Path, Mapping[str, str]],
) -> None:
    wishes, ends = asked(replace(SEEDED, max_tokens=30)), tuple(range(60))
    wishes = [
        replace(one, sampling=replace(one.sampling, ignore_eos=False, stop_token_ids=ends))
        for one in wishes
    ]
    ours = drafts_of(*made, wishes, draws=True)
    assert ours.made == drafts_of(*made, wishes, draws=False).made
    shorter = [one for one in ours.made.values() if one[-1] in ends and len(one) < MOST]
    assert shorter
    assert all(token not in ends for one in ours.made.values() for token in one[:-1])


@pytest.mark.usefixtures("restless")
def test_ranks_draft_as_one_does(made: tuple[Path, Mapping[str, str]]) -> None:
    folder, settings = made
    accelerators = [FakeAccelerator(draws=True) for _ in range(2)]
    wishes = asked(GREEDY)
    with ranked(folder, 2, accelerators, **DEVICE, **settings) as engine:
        watched = Watched.watch(engine)
        assert run(engine, wishes) == run(load(folder), wishes)
    assert watched.made == drafts_of(folder, settings, wishes, draws=False).made


@pytest.mark.usefixtures("restless")
def test_a_draft_model_of_more_words_is_read_by_the_host(tmp_path: Path) -> None:
    """It may draw a token that the model does not have."""
    model = make_checkpoint(tmp_path / "model")
    draft = make_checkpoint(tmp_path / "draft", num_hidden_layers=1, seed=3, vocab_size=400)
    wishes = asked(GREEDY)
    ours = drafts_of(model, drafted_by(draft, MOST), wishes, draws=True)
    assert ours.made == drafts_of(model, drafted_by(draft, MOST), wishes, draws=False).made
    assert max(done.count("read") for done in ours.done) == 0
