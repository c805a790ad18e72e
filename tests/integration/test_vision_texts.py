"""The text part of a model for text and images is found however it was published."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from engine.checkpoints.checkpoint import WEIGHTS
from engine.errors import UnsupportedArchitecture, UnusableCheckpoint
from engine.models.config import parse_config
from engine.models.family import TEXT
from tests.fakes.checkpoints import SHAPE, edit_config, make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits
from tests.fakes.mixtures import part_experts, turn_experts
from tests.fakes.packed import pack
from tests.fakes.published_seers import SEERS
from tests.fakes.raw_configs import MANY
from tests.fakes.reference import Reference
from tests.fakes.vision_text_shapes import VISION_PARTS, VISION_TEXT_SHAPE
from tests.integration.test_config import OPTIONAL, assert_same
from tests.integration.test_expert_ranks import assert_ranks_say_what_one_says
from tests.integration.test_packed import FAMILIES, narrow, numbers
from tests.integration.test_storage import whole_engine

TOKENS = prompt(75)


def assert_same_as_transformers(folder: Path, judged_by: Path | None = None) -> None:
    ours = prompt_logits(load(folder), TOKENS, 32)
    theirs = Reference(judged_by or folder).logits(TOKENS)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_experts_of_qwen3_vl_are_stored_with_inputs_first(tmp_path: Path) -> None:
    turn_experts(make_checkpoint(tmp_path, "qwen3_vl_moe"))
    assert_same_as_transformers(tmp_path)


def test_ranks_share_out_experts_with_inputs_first(tmp_path: Path) -> None:
    turn_experts(make_checkpoint(tmp_path, "qwen3_vl_moe"))
    assert_ranks_say_what_one_says(tmp_path, 2)


def test_experts_of_qwen3_vl_may_be_stored_one_by_one(tmp_path: Path) -> None:
    """As transformers does not read them."""
    stacked, parted = make_checkpoint(tmp_path / "stacked", "qwen3_vl_moe"), tmp_path / "parted"
    part_experts(stacked, parted)
    assert_same_as_transformers(parted, judged_by=stacked)


def test_stacked_experts_of_another_size_are_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen3_vl_moe")
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    edit_config(tmp_path, {"text_config": {**text, "moe_intermediate_size": 20}})
    with pytest.raises(UnusableCheckpoint, match=r"gate_up_proj is \(8, 48, .*\(8, 40, 32"):
        load(tmp_path)


def test_experts_of_kimi_k25_are_in_four_bits(tmp_path: Path) -> None:
    """Which its text part's config says."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    make_checkpoint(plain, "kimi_k25", **FAMILIES["deepseek_v3"])
    pack(plain, packed, "pack-quantized")
    config = json.loads((packed / "config.json").read_text())
    text = {**config["text_config"], "quantization_config": config["quantization_config"]}
    edit_config(packed, {"text_config": text, "quantization_config": None})
    pairs = zip(
        numbers(narrow(packed).decoder), numbers(whole_engine(plain).decoder), strict=True
    )
    assert (packed / WEIGHTS).exists()
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "changes", "text"),
    [
        ("Qwen3 VL 4B", {"model_type": "qwen3_next"}, "model_type qwen3_next"),
        ("Qwen3 VL 4B", {"use_sliding_window": True}, "use_sliding_window True"),
        ("Qwen3 VL 30B A3B", {"norm_topk_prob": False}, "norm_topk_prob False"),
        ("Kimi K2.5", {"model_type": "kimi_linear"}, "model_type kimi_linear"),
        ("Kimi K2.5", {"scoring_func": "softmax"}, "scoring_func softmax"),
        ("GLM 4.1V 9B", {"attention_bias": False}, "attention_bias False"),
        ("GLM 4.1V 9B", {"model_type": "glm_ocr_text"}, "model_type glm_ocr_text"),
        ("GLM 4.5V", {"use_qk_norm": True}, "use_qk_norm True"),
    ],
)
def test_what_a_text_part_cannot_be_is_named(
    model: str, changes: dict[str, object], text: str
) -> None:
    config = deepcopy(SEERS[model])
    config["text_config"] |= changes
    with pytest.raises(UnsupportedArchitecture, match=text):
        parse_config(config)


@pytest.mark.parametrize("model", [one for one in SEERS if TEXT in SEERS[one]])
def test_a_model_without_a_text_part_is_refused(model: str) -> None:
    config = {key: value for key, value in SEERS[model].items() if key != TEXT}
    with pytest.raises(UnusableCheckpoint, match="text_config is missing"):
        parse_config(config)


@pytest.mark.parametrize("left_out", OPTIONAL)
@pytest.mark.parametrize("family", VISION_TEXT_SHAPE)
def test_what_is_left_out_means_the_same(family: str, left_out: str, tmp_path: Path) -> None:
    """In the text's config, or in the whole one."""
    text = SHAPE | VISION_TEXT_SHAPE[family] | MANY
    made = AutoConfig.for_model(family, text_config=text, **VISION_PARTS[family]).to_dict()
    raw = {key: value for key, value in made.items() if key != left_out}
    raw[TEXT] = {key: value for key, value in made[TEXT].items() if key != left_out}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    whole = AutoConfig.from_pretrained(tmp_path)
    theirs = whole.get_text_config()
    theirs.tie_word_embeddings = whole.tie_word_embeddings
    assert_same(parse_config(raw), theirs)
