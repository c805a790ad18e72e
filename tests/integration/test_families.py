"""Every family we serve says what transformers says, whatever its config asks for."""

from pathlib import Path

import pytest
import torch

from engine.models.families import FAMILIES
from engine.request import Sampling
from tests.fakes.checkpoints import FAMILY_SHAPE, edit_config, make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run
from tests.fakes.families import CASES, Case
from tests.fakes.reference import Reference

CHUNK = 32
GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)


def named(case: Case) -> str:
    return f"{case.family}: {case.name}"


def test_every_family_that_is_served_is_tested() -> None:
    assert set(FAMILIES) == set(FAMILY_SHAPE) == {case.family for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_batch_says_what_transformers_says(case: Case, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, case.family, **case.overrides)
    edit_config(tmp_path, case.edits)
    engine = load(
        tmp_path,
        max_num_batched_tokens=CHUNK,
        block_size=case.block_size,
        max_model_len=case.max_model_len,
    )
    reference = Reference(tmp_path)
    prompts = [prompt(length) for length in case.lengths]
    answers = run(engine, requests(prompts, GREEDY))
    for tokens, answer in zip(prompts, answers, strict=True):
        assert answer == reference.greedy(tokens, answer)
    logits = prompt_logits(engine, prompts[-1], CHUNK)
    torch.testing.assert_close(logits, reference.logits(prompts[-1]), atol=1e-4, rtol=1e-4)
