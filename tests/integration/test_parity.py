"""Every family, in every dtype, says what transformers says, whatever an engine does with it.

docs/reference/models.md has one cell for each of these tests (tests/parity.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.config import parse_config
from engine.models.decoder import Decoder
from engine.request import Request, Sampling
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import FAMILY_SHAPE, make_checkpoint
from tests.fakes.driver import (
    assert_idle,
    drain,
    hand_over,
    load,
    prompt,
    prompt_logits,
    requests,
    run,
)
from tests.fakes.families import Feature, covered
from tests.fakes.reference import Reference

PROMPTS = [prompt(length) for length in (1, 17, 33, 75, 130)]
SHARED = PROMPTS[3]  # what other prompts begin with
BRANCHES = [(*SHARED, 1, 2, 3), (*SHARED[:48], 9), SHARED]
TOKENS = {"float32": 64, "bfloat16": 16, "float16": 16}
EQUAL = 1e-4  # logits of float32 that are closer may be either's first
MORE = 1.25  # a sum in another order has another error
# Where two experts score alike, rounding decides between them, and a token that goes another
# way is far off, and those that look at it a little: in transformers as here, but not the same
# tokens. So many of the worst are not looked at in answers, and in the logits of a prompt.
STRAYS, LED_ASTRAY = 0.1, 0.75

Answers = list[tuple[Sequence[int], list[int]]]  # what each prompt was answered


@dataclass
class Trial:
    """One family in one dtype: a checkpoint, and its judge."""

    folder: Path
    dtype: str
    exact: Reference
    rounded: Reference | None  # in half precision: transformers in the same dtype
    strays: float  # the share of tokens that rounding may send to other experts

    def engine(self, **settings: object) -> TorchEngine:
        """The dtype is the checkpoint's."""
        return load(self.folder, dtype="auto", model_impl="pdserve", **settings)

    def requests(self, prompts: Sequence[tuple[int, ...]]) -> list[Request]:
        """Greedy ones."""
        tokens = TOKENS[self.dtype]
        return requests(prompts, Sampling(max_tokens=tokens, temperature=0, ignore_eos=True))

    def answers(self, **settings: object) -> Answers:
        """Of one engine, to all prompts at once."""
        said = run(self.engine(**settings), self.requests(PROMPTS))
        return list(zip(PROMPTS, said, strict=True))

    def shortfall(self, tokens: Sequence[int], answer: list[int]) -> Tensor:
        """[answer] by how much the best token was better than the chosen one."""
        theirs = self.exact.logits([*tokens, *answer])[len(tokens) - 1 : -1]
        chosen = theirs.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
        return theirs.amax(1) - chosen

    def tolerance(self, answers: Answers) -> float:
        """How far below the best logit a chosen one may be.

        What rounding costs transformers is what it may cost us, in the same texts: some tokens
        are much worse than others in all of a family.
        """
        if self.rounded is None:
            return EQUAL
        texts = [PROMPTS[-1], *((*tokens, *answer) for tokens, answer in answers)]
        pairs = [(self.rounded.logits(one), self.exact.logits(one)) for one in texts]
        errors = torch.cat([(ours - theirs).abs().amax(1) for ours, theirs in pairs])
        return 2 * MORE * float(errors.quantile(1 - self.strays))


@dataclass
class Trials:
    """Each is made once."""

    folder: Path
    made: dict[tuple[str, str], Trial] = field(default_factory=dict)

    def of(self, family: str, dtype: str) -> Trial:
        """Made once for all features."""
        if (family, dtype) not in self.made:
            self.made[family, dtype] = self._make(family, dtype)
        return self.made[family, dtype]

    def _make(self, family: str, dtype: str) -> Trial:
        folder = make_checkpoint(self.folder / family / dtype, family, dtype=dtype)
        rounded, strays = None, 0.0
        if dtype != "float32":
            experts = parse_config(open_checkpoint(str(folder)).config).experts
            strays = STRAYS if experts is not None else 0.0
            rounded = Reference(folder, getattr(torch, dtype))
        return Trial(folder, dtype, Reference(folder), rounded, strays)


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("families"))


def whole(trial: Trial) -> Answers:
    return trial.answers(max_num_batched_tokens=512)


def chunked(trial: Trial) -> Answers:
    return trial.answers(max_num_batched_tokens=32)


def odd_blocks(trial: Trial) -> Answers:
    return trial.answers(block_size=5, max_num_batched_tokens=29)


def windows(trial: Trial) -> Answers:
    engine = trial.engine(block_size=3, max_num_batched_tokens=13)
    assert isinstance(engine.decoder, Decoder)
    spans = [layer.window for layer in engine.decoder.config.layers if layer.window]
    assert spans
    assert max(spans) < len(PROMPTS[-1])
    return list(zip(PROMPTS, run(engine, trial.requests(PROMPTS)), strict=True))


def shared_prefixes(trial: Trial) -> Answers:
    engine = trial.engine()
    run(engine, trial.requests([SHARED]))
    asked = trial.requests(BRANCHES)
    for request in asked:
        engine.generate(request)
    known = {one.request_id: one.cached_tokens for one in engine.schedule()}
    assert [known[request.request_id] for request in asked] == [64, 48, 64]
    answers = drain(engine)
    return [(request.prompt, answers[request.request_id]) for request in asked]


def split(trial: Trial) -> Answers:
    source, sink = trial.engine(max_num_batched_tokens=32), trial.engine()
    run(sink, trial.requests([prompt(70, seed=9)]))  # no block is where it was elsewhere
    asked = trial.requests(PROMPTS)
    answers = hand_over(source, sink, asked)
    assert_idle(source)
    assert_idle(sink)
    return [(one.prompt, answer) for one, answer in zip(asked, answers, strict=True)]


HOW: dict[Feature, Callable[[Trial], Answers]] = {
    Feature.WHOLE: whole,
    Feature.CHUNKED: chunked,
    Feature.ODD_BLOCKS: odd_blocks,
    Feature.SHARED: shared_prefixes,
    Feature.WINDOWS: windows,
    Feature.SPLIT: split,
}


@pytest.mark.parametrize(("family", "dtype", "feature"), list(covered()))
def test_answers_are_those_of_transformers(
    trials: Trials, family: str, dtype: str, feature: Feature
) -> None:
    trial = trials.of(family, dtype)
    answers = HOW[feature](trial)
    assert all(len(answer) == TOKENS[dtype] for _, answer in answers)
    shortfalls = torch.cat([trial.shortfall(tokens, answer) for tokens, answer in answers])
    assert shortfalls.quantile(1 - trial.strays) < trial.tolerance(answers)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILY_SHAPE)
def test_half_precision_is_as_close_to_float32_as_transformers_is(
    trials: Trials, family: str, dtype: str
) -> None:
    trial = trials.of(family, dtype)
    engine, tokens = trial.engine(), PROMPTS[-1]
    assert engine.info.kv_dtype == dtype
    assert trial.rounded is not None
    rounded, truth = (one.logits(tokens) for one in (trial.rounded, trial.exact))
    ours = prompt_logits(engine, tokens, 32)
    kept = int((1 - LED_ASTRAY if trial.strays else 1) * len(tokens))
    our_errors, their_errors = (
        (one - truth).norm(dim=1).sort().values[:kept].norm() for one in (ours, rounded)
    )
    assert our_errors < MORE * their_errors
