"""A config.json means to us what it means to transformers, also by what it leaves out."""

import json
from math import log1p
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.models.config import ModelConfig, parse_config
from engine.models.rope import query_scales, rope_table
from engine.models.rope_config import BETA, TRAINED, Rope
from tests.fakes.checkpoints import FAMILY_SHAPE, SEEING, edit_config, make_checkpoint
from tests.fakes.driver import load
from tests.fakes.hybrid_shapes import TURNS
from tests.fakes.published_mixtures import PUBLISHED
from tests.fakes.raw_configs import raw_config
from tests.fakes.taught import teach_transformers

OPTIONAL = [
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "layer_norm_epsilon",
    "hidden_act",
    "rope_parameters",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "tie_word_embeddings",
    "attention_bias",
    "architectures",
]

HEADS: tuple[dict[str, Any], ...] = ({}, {"per_layer_config": None})  # which fit head_dim
GROWS = {"rope_type": "default", BETA: 0.5, TRAINED: 100}


@pytest.mark.parametrize("left_out", OPTIONAL)
@pytest.mark.parametrize("family", sorted(FAMILY_SHAPE.keys() - SEEING))
@pytest.mark.parametrize("window", [{}, {"use_sliding_window": True, "sliding_window": 9}])
def test_what_is_left_out_means_the_same(
    family: str, left_out: str, window: dict[str, object], tmp_path: Path
) -> None:
    kinds = {"layer_types": TURNS.get(family), **HEADS[left_out == "head_dim"]}
    raw = raw_config(family, **{**window, left_out: None, **kinds})
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs, ours = AutoConfig.from_pretrained(tmp_path), parse_config(raw)
    assert_same(ours, theirs)


def assert_same(ours: ModelConfig, theirs: PreTrainedConfig) -> None:
    theirs.allow_global_per_layer_attribute_access = True  # Gemma 4's heads, of most layers
    head_dim = getattr(theirs, "head_dim", None)
    head_dim = head_dim or theirs.hidden_size // theirs.num_attention_heads
    assert ours.num_kv_heads == (1 if ours.latent else theirs.num_key_value_heads)
    assert ours.head_dim == (theirs.qk_rope_head_dim if ours.latent else head_dim)
    ropes = getattr(theirs, "rope_parameters", {})  # of some families, none at all
    growth = ropes.get("llama_4_scaling_beta")
    assert (ours.query_scaling and ours.query_scaling.llama_4_scaling_beta) == growth
    names = ("rms_norm_eps", "layer_norm_epsilon", "norm_eps")
    assert ours.norm_eps == next(filter(None, (getattr(theirs, one, None) for one in names)))
    assert ours.max_positions == max(theirs.max_position_embeddings, stretched(ropes))
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    count = theirs.num_hidden_layers
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * count
    known = type(theirs)().to_dict()  # to others, a window is a word without meaning
    span = theirs.sliding_window if "sliding_window" in known else None
    assert [layer.window for layer in ours.layers] == [
        span if kind == "sliding_attention" else None for kind in kinds
    ]
    thetas = [rope_of(ropes, kind).get("rope_theta") for kind in kinds]
    rotates = getattr(theirs, "position_embedding_type", "rope") == "rope"
    turned = getattr(theirs, "no_rope_layers", None) or [rotates] * len(kinds)
    if theirs.model_type in ("exaone4", "exaone_moe") and span is not None:
        turned = [kind == "sliding_attention" for kind in kinds]
    for layer, kind in zip(ours.layers, kinds, strict=True):
        assert layer.recurrent == (kind in ("linear_attention", "conv", "hybrid"))
    assert [layer.rope and layer.rope.rope_theta for layer in ours.layers] == [
        theta if rotated and kind not in ("linear_attention", "conv") else None
        for theta, rotated, kind in zip(thetas, turned, kinds, strict=True)
    ]


def stretched(parameters: dict[str, Any]) -> int:
    """How far yarn reaches, whatever else is said."""
    if parameters.get("rope_type") != "yarn":
        return 0
    return int(parameters["factor"] * parameters["original_max_position_embeddings"])


def rope_of(parameters: dict[str, Any], kind: str) -> dict[str, Any]:
    """Of all layers, or of this kind."""
    of_kind: dict[str, Any] = parameters.get(kind, parameters)
    return of_kind


@pytest.mark.parametrize("model", PUBLISHED)
def test_what_was_published_means_the_same(model: str, tmp_path: Path) -> None:
    teach_transformers()
    raw = PUBLISHED[model]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    whole, ours = AutoConfig.from_pretrained(tmp_path), parse_config(raw)
    theirs = whole.get_text_config()
    theirs.tie_word_embeddings = whole.tie_word_embeddings
    assert_same(ours, theirs)
    assert ours.vocab_size == theirs.vocab_size
    assert ours.num_heads == theirs.num_attention_heads
    kinds = getattr(theirs, "layer_types", None) or [""] * ours.num_layers
    for layer, kind in zip(ours.layers, kinds, strict=True):
        if layer.rope is not None:
            assert_same_angles(layer.rope, theirs, kind, ours)


def assert_same_angles(
    rope: Rope, theirs: PreTrainedConfig, kind: str, ours: ModelConfig
) -> None:
    """Those of the first position after the start, for sequences beyond the trained length."""
    length = rope.original_max_position_embeddings + 1 if rope.long_factor else 2
    width = ours.rope_width(rope)
    table = rope_table(rope, width, length)[1]
    nested = {"layer_type": kind} if kind in theirs.rope_parameters else {}
    if rope.rope_type == "default":
        share = rope_of(theirs.rope_parameters, kind).get("partial_rotary_factor", 1.0)
        turned = int(width * share)
        angles, scale = rope.rope_theta ** -(torch.arange(0, 1, 2 / turned)), 1.0
    else:
        compute = ROPE_INIT_FUNCTIONS[rope.rope_type]
        angles, scale = compute(theirs, seq_len=ours.max_positions, **nested)
    pairs, half = rope.rotary_dim // 2, width // 2
    torch.testing.assert_close(table[0, :pairs], angles.cos() * scale)
    torch.testing.assert_close(table[1, half : half + pairs], angles.sin() * scale)


def test_yarn_stretches_the_positions() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert parse_config(raw_config("qwen2", rope_parameters=scaling)).max_positions == 2048


def test_queries_grow_beyond_the_trained_length() -> None:
    scaling = parse_config(raw_config("ministral3", rope_parameters=GROWS)).query_scaling
    scales = query_scales(scaling, 301)
    assert scales is not None
    grown = [scales[at].item() for at in (0, 99, 100, 199, 200, 299, 300)]
    steps = [0, 0, 1, 1, 2, 2, 3]
    assert grown == pytest.approx([1 + 0.5 * log1p(step) for step in steps])
    assert query_scales(scaling, 100) is None  # and nothing is multiplied


def test_yarn_without_a_factor_reaches_the_last_position() -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 128}
    assert parse_config(raw_config("llama", rope_parameters=scaling)).ropes[0].factor == 4


def test_lengths_may_be_written_as_whole_floats() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128.0}
    settings = {"rope_parameters": scaling, "max_position_embeddings": 512.0}
    config = parse_config(raw_config("llama", **settings))
    trained = config.ropes[0].original_max_position_embeddings
    assert (trained, config.max_positions) == (128, 512)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_numbers_are_in_need_not_be_said(dtype: str, tmp_path: Path) -> None:
    """gpt-oss was published without; a few tensors of another type do not count."""
    file = make_checkpoint(tmp_path, dtype=dtype) / "model.safetensors"
    tensors = load_file(file)
    exact = {name: one.float() for name, one in tensors.items() if "norm" in name}
    save_file({**tensors, **exact}, file)
    edit_config(tmp_path, {"dtype": None, "torch_dtype": None})
    assert load(tmp_path, dtype="auto").info.kv_dtype == dtype


def test_what_numbers_are_in_may_be_said_of_the_text_alone(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "gemma3")
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    edit_config(tmp_path, {"text_config": {**text, "dtype": "bfloat16"}})
    assert load(tmp_path, dtype="auto").info.kv_dtype == "bfloat16"
