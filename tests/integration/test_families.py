"""Every family we serve says what transformers says, whatever its config asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.request import Sampling
from tests.fakes.checkpoints import FAMILY_SHAPE, edit_config, make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run
from tests.fakes.reference import Reference

CHUNK = 32
LENGTHS = (1, 2, 15, 16, 17, 33, 75, 130)
ANSWER = 24
MORE = 1.25  # a sum in another order has another error
GREEDY = Sampling(max_tokens=ANSWER, temperature=0, ignore_eos=True)


@dataclass(frozen=True)
class Case:
    """A checkpoint to make, and what is changed in its config.json afterwards."""

    name: str
    family: str = "llama"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    edits: Mapping[str, Any] = field(default_factory=dict)
    block_size: int = 16


def rope(**settings: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_theta": 1000.0, **settings}}


def old_rope(**settings: object) -> dict[str, object]:
    return {"rope_parameters": None, "rope_theta": 1000.0, "rope_scaling": settings}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}
TYPED_YARN = {"rope_type": "yarn", **YARN}
SLIDING = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}

CASES = [
    Case("llama"),
    Case("tied", overrides={"tie_word_embeddings": True}, block_size=5),
    Case("shards", overrides={"max_shard_size": "60KB"}),
    Case("one kv head", overrides={"num_key_value_heads": 1}, block_size=1),
    Case("as many kv heads", overrides={"num_key_value_heads": 4}),
    Case("biases", overrides={"attention_bias": True, "mlp_bias": True}),
    Case("head dim", overrides={"head_dim": 24}, block_size=7),
    Case("linear", overrides=rope(rope_type="linear", factor=4.0)),
    Case("llama3", overrides=rope(rope_type="llama3", **LLAMA3)),
    Case("yarn", overrides=rope(**TYPED_YARN)),
    Case(
        "yarn betas",
        overrides={"head_dim": 32, **rope(**TYPED_YARN, beta_fast=4, beta_slow=2)},
    ),
    Case("yarn not truncated", overrides=rope(**TYPED_YARN, truncate=False)),
    Case("yarn attention", overrides=rope(**TYPED_YARN, attention_factor=0.7)),
    Case("yarn scales", overrides=rope(**TYPED_YARN, mscale=1.5, mscale_all_dim=0.5)),
    Case("dynamic", overrides=rope(rope_type="dynamic", factor=2.0)),
    Case("old default", edits={"rope_parameters": None, "rope_theta": 1000.0}),
    Case("old linear", edits=old_rope(type="linear", factor=4.0)),
    Case("old llama3", edits=old_rope(rope_type="llama3", **LLAMA3)),
    Case("old yarn", edits=old_rope(type="yarn", **YARN)),
    Case("no rope at all", edits={"rope_parameters": None}),
    Case("trained length unsaid", edits=old_rope(type="yarn", factor=4.0)),
    Case(
        "trained length outside",
        edits={
            **old_rope(type="yarn", factor=4.0),
            "original_max_position_embeddings": 128,
        },
    ),
    Case("mistral", "mistral", {"tie_word_embeddings": True}),
    Case("mistral window", "mistral", {"sliding_window": 20}),
    Case("mistral small window", "mistral", {"sliding_window": 3}, block_size=5),
    Case("qwen2", "qwen2"),
    Case("qwen2 tied", "qwen2", {"tie_word_embeddings": True, "max_shard_size": "60KB"}),
    Case("qwen2 window", "qwen2", SLIDING),
    Case(
        "qwen2 window unused",
        "qwen2",
        edits={**SLIDING, "use_sliding_window": False, "layer_types": None},
    ),
    Case("qwen2 window of old", "qwen2", SLIDING, {"layer_types": None}),
    Case(
        "qwen2 layer types",
        "qwen2",
        {
            **SLIDING,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    Case("qwen3", "qwen3"),
    Case("qwen3 tied", "qwen3", {"tie_word_embeddings": True}, block_size=3),
    Case("qwen3 biases", "qwen3", {"attention_bias": True, "max_shard_size": "60KB"}),
    Case("qwen3 window", "qwen3", SLIDING),
]


def named(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_batch_says_what_transformers_says(case: Case, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, case.family, **case.overrides)
    edit_config(tmp_path, case.edits)
    engine = load(tmp_path, max_num_batched_tokens=CHUNK, block_size=case.block_size)
    reference = Reference(tmp_path)
    prompts = [prompt(length) for length in LENGTHS]
    answers = run(engine, requests(prompts, GREEDY))
    for tokens, answer in zip(prompts, answers, strict=True):
        assert answer == reference.greedy(tokens, answer)
    logits = prompt_logits(engine, prompts[-1], CHUNK)
    torch.testing.assert_close(logits, reference.logits(prompts[-1]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILY_SHAPE)
def test_half_precision_is_as_close_to_float32_as_transformers_is(
    family: str, dtype: str, tmp_path: Path
) -> None:
    """The dtype is the checkpoint's. How far off we may be is what rounding costs the judge."""
    make_checkpoint(tmp_path, family, dtype=dtype)
    engine = load(tmp_path, dtype="auto", max_num_batched_tokens=CHUNK)
    assert engine.info.kv_dtype == dtype
    exact, prompts = Reference(tmp_path), [prompt(length) for length in LENGTHS]
    truth, rounded = (
        judge.logits(prompts[-1])
        for judge in (exact, Reference(tmp_path, getattr(torch, dtype)))
    )
    ours = prompt_logits(engine, prompts[-1], CHUNK)
    assert (ours - truth).norm() < MORE * (rounded - truth).norm()
    for tokens, answer in zip(prompts, run(engine, requests(prompts, GREEDY)), strict=True):
        theirs = exact.logits([*tokens, *answer])[len(tokens) - 1 : -1]
        chosen = theirs.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
        assert (theirs.amax(1) - chosen).max() < 2 * MORE * (rounded - truth).abs().max()
