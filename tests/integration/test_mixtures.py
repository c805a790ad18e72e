"""Experts say what transformers says, however a checkpoint stores them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints.checkpoint import open_checkpoint
from engine.errors import UnusableCheckpoint
from engine.models.config import parse_config
from engine.request import Sampling
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run
from tests.fakes.mixture_shapes import MIXTURE_SHAPE
from tests.fakes.mixtures import guess_ahead, pack_mxfp4, stack_experts
from tests.fakes.reference import Reference

CHUNK = 32
PROMPTS = [prompt(length) for length in (1, 16, 33, 75, 130)]
STACKED = [one for one in MIXTURE_SHAPE if one != "gpt_oss"]
GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)


def assert_says_what_transformers_says(folder: Path, judged_by: Path | None = None) -> None:
    engine = load(folder, max_num_batched_tokens=CHUNK)
    reference = Reference(judged_by or folder)
    for tokens, answer in zip(PROMPTS, run(engine, requests(PROMPTS, GREEDY)), strict=True):
        assert answer == reference.greedy(tokens, answer)
    logits = prompt_logits(engine, PROMPTS[-1], CHUNK)
    torch.testing.assert_close(logits, reference.logits(PROMPTS[-1]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", STACKED)
def test_experts_may_be_stacked_in_one_tensor(family: str, tmp_path: Path) -> None:
    stack_experts(make_checkpoint(tmp_path, family))
    assert_says_what_transformers_says(tmp_path)


def test_experts_of_four_bits_are_read(tmp_path: Path) -> None:
    """transformers unpacks them too, but wants more installed to do so while it loads."""
    plain, packed = make_checkpoint(tmp_path / "plain", "gpt_oss"), tmp_path / "packed"
    pack_mxfp4(plain, packed)
    assert_says_what_transformers_says(packed, judged_by=plain)


@pytest.mark.parametrize("family", ["deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite"])
def test_what_guesses_ahead_is_left_out(family: str, tmp_path: Path) -> None:
    guess_ahead(make_checkpoint(tmp_path, family))
    assert_says_what_transformers_says(tmp_path)
    edit_config(tmp_path, {"num_nextn_predict_layers": 0})
    with pytest.raises(UnusableCheckpoint, match=r"2 tensors too many.*layers\.2\."):
        load(tmp_path)


@pytest.mark.parametrize(
    ("family", "at"), [("ernie4_5_moe", "model.mtp_"), ("exaone_moe", "mtp.")]
)
def test_what_guesses_ahead_may_have_a_name_of_its_own(
    family: str, at: str, tmp_path: Path
) -> None:
    file = make_checkpoint(tmp_path, family) / "model.safetensors"
    extra = {f"{at}{name}.0.weight": torch.ones(3) for name in ("block", "linear_proj")}
    save_file({**load_file(file), **extra}, file, {"format": "pt"})
    assert_says_what_transformers_says(tmp_path)


def test_one_correction_for_all_may_be_a_row(tmp_path: Path) -> None:
    """ERNIE's is; a row of another length is of other experts."""
    file = make_checkpoint(tmp_path, "ernie4_5_moe") / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.moe_statics.e_score_correction_bias"
    assert tensors[name].shape == (1, 8)
    tensors[name] = torch.ones(1, 7)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match=r"correction_bias is \(1, 7\).*\(8,\)"):
        load(tmp_path)


@pytest.mark.parametrize("family", ["kimi_k2", "glm4_moe", "glm4_moe_lite", "dots1"])
def test_a_choice_among_one_group_is_left_to_the_kernel(family: str, tmp_path: Path) -> None:
    """As these were published: choosing groups takes a dozen launches."""
    make_checkpoint(tmp_path, family)
    for groups, kernel in (({}, True), ({"n_group": 4, "topk_group": 2}, False)):
        config = parse_config({**open_checkpoint(str(tmp_path)).config, **groups})
        assert config.experts is not None
        assert (config.experts.routing.groups is None) == kernel


@pytest.mark.parametrize("name", ["mlp.experts.1.down_proj.weight", "mlp.gate.weight"])
def test_a_missing_expert_is_named(name: str, tmp_path: Path) -> None:
    file = make_checkpoint(tmp_path, "qwen3_moe") / "model.safetensors"
    tensors = load_file(file)
    del tensors[f"model.layers.1.{name}"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match=f"layers.1.{name} is missing"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("glm4_moe", "mlp.gate.e_score_correction_bias"),
        ("minimax_m2", "block_sparse_moe.e_score_correction_bias"),
        ("exaone_moe", "mlp.e_score_correction_bias"),
        ("ernie4_5_moe", "mlp.moe_statics.e_score_correction_bias"),
    ],
)
def test_a_missing_correction_is_named(family: str, name: str, tmp_path: Path) -> None:
    file = make_checkpoint(tmp_path, family) / "model.safetensors"
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
