"""Experts say what transformers says, however a checkpoint stores them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnusableCheckpoint
from engine.request import Sampling
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run
from tests.fakes.mixtures import guess_ahead, pack_mxfp4, stack_experts
from tests.fakes.reference import Reference

CHUNK = 32
PROMPTS = [prompt(length) for length in (1, 16, 33, 75, 130)]
GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)


def assert_says_what_transformers_says(folder: Path, judged_by: Path | None = None) -> None:
    engine = load(folder, max_num_batched_tokens=CHUNK)
    reference = Reference(judged_by or folder)
    for tokens, answer in zip(PROMPTS, run(engine, requests(PROMPTS, GREEDY)), strict=True):
        assert answer == reference.greedy(tokens, answer)
    logits = prompt_logits(engine, PROMPTS[-1], CHUNK)
    torch.testing.assert_close(logits, reference.logits(PROMPTS[-1]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3"])
def test_experts_may_be_stacked_in_one_tensor(family: str, tmp_path: Path) -> None:
    stack_experts(make_checkpoint(tmp_path, family))
    assert_says_what_transformers_says(tmp_path)


def test_experts_of_four_bits_are_read(tmp_path: Path) -> None:
    """transformers unpacks them too, but wants more installed to do so while it loads."""
    plain, packed = make_checkpoint(tmp_path / "plain", "gpt_oss"), tmp_path / "packed"
    pack_mxfp4(plain, packed)
    assert_says_what_transformers_says(packed, judged_by=plain)


def test_what_guesses_ahead_is_left_out(tmp_path: Path) -> None:
    guess_ahead(make_checkpoint(tmp_path, "deepseek_v3"))
    assert_says_what_transformers_says(tmp_path)
    edit_config(tmp_path, {"num_nextn_predict_layers": 0})
    with pytest.raises(UnusableCheckpoint, match=r"2 tensors too many.*layers\.2\."):
        load(tmp_path)


@pytest.mark.parametrize("name", ["mlp.experts.1.down_proj.weight", "mlp.gate.weight"])
def test_a_missing_expert_is_named(name: str, tmp_path: Path) -> None:
    file = make_checkpoint(tmp_path, "qwen3_moe") / "model.safetensors"
    tensors = load_file(file)
    del tensors[f"model.layers.1.{name}"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match=f"layers.1.{name} is missing"):
        load(tmp_path)


def test_experts_of_another_shape_are_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "gpt_oss")
    edit_config(tmp_path, {"intermediate_size": 48})
    with pytest.raises(
        UnusableCheckpoint, match=r"gate_up_proj is \(4, 64, 64\).*\(4, 64, 96\)"
    ):
        load(tmp_path)
