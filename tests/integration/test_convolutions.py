"""Models with gated short convolutions: what their configs say, and their tensors' names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.checkpoints.checkpoint import WEIGHTS
from engine.errors import UnusableCheckpoint
from engine.models.config import ModelConfig, parse_config
from engine.models.decoder import Decoder, kv_shape_of
from engine.models.short_convolution import ShortConvolution
from engine.ranks.opening import refuse_ranks
from engine.request import Sampling
from engine.settings import EngineConfig
from engine.sizing import STORED_TYPES
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run
from tests.fakes.kv_scales import add_scales
from tests.fakes.mixtures import stack_experts
from tests.fakes.published_convolutions import CONVOLUTIONS

GREEDY = Sampling(max_tokens=16, temperature=0, ignore_eos=True)
PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64)]
DENSE, MIXTURE = CONVOLUTIONS["LFM2 1.2B"], CONVOLUTIONS["LFM2 8B A1B"]


def test_what_published_models_consist_of() -> None:
    old, new, mixture = (parse_config(one) for one in CONVOLUTIONS.values())
    assert old == new
    assert (old.recurrent_layers, old.kv_layers, old.intermediate_size) == (10, 6, 8192)
    assert (mixture.recurrent_layers, mixture.kv_layers, mixture.dense_layers) == (18, 6, 2)
    assert mixture.intermediate_size == 7168
    state = kv_shape_of(old).state
    assert state is not None
    assert state.layer_bytes == 2 * 2048 * 4


def test_each_layer_is_what_its_kind_says(tmp_path: Path) -> None:
    decoder = load(make_checkpoint(tmp_path, "lfm2")).decoder
    assert isinstance(decoder, Decoder)
    convolves = [isinstance(layer.attention, ShortConvolution) for layer in decoder.layers]
    assert convolves == [True, False, True, True]


def test_experts_may_be_stacked(tmp_path: Path) -> None:
    """As they are in transformers' memory, and not as it saves them."""
    folder = make_checkpoint(tmp_path, "lfm2_moe")
    assert "model.layers.2.feed_forward.experts.7.w2.weight" in load_file(folder / WEIGHTS)
    expected = run(load(folder), requests(PROMPTS, GREEDY))
    stack_experts(folder)
    assert "model.layers.2.feed_forward.experts.down_proj" in load_file(folder / WEIGHTS)
    assert run(load(folder), requests(PROMPTS, GREEDY)) == expected


def test_scales_of_kv_are_folded_into_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which have names of their own here. KV is scaled, but not rounded: nothing may change."""
    monkeypatch.setitem(STORED_TYPES, "fp8", None)
    kinds: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    folder = make_checkpoint(tmp_path, "lfm2", **kinds)
    plain = load(folder, kv_cache_dtype="fp8")
    scaled = load(
        add_scales(folder, {"k_scale": (1.0, 5.0), "v_scale": (1.0, 0.01)}),
        kv_cache_dtype="fp8",
    )
    found = [prompt_logits(engine, prompt(40), 25) for engine in (plain, scaled)]
    assert torch.equal(*found)
    config = scaled.decoder.config
    assert isinstance(config, ModelConfig)
    assert (config.layers[1].key_scale, config.layers[1].value_scale) == (8, 1 / 64)


def test_channels_that_do_not_share_out_are_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "lfm2", hidden_size=34, head_dim=8)
    with pytest.raises(UnusableCheckpoint, match=r"-size 4: 34 channels of convolutions do"):
        refuse_ranks(EngineConfig(model=str(folder), tensor_parallel_size=4))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"conv_L_cache": 1}, "conv_L_cache 1: "),
        ({"conv_L_cache": "three"}, 'conv_L_cache has to be .* "three"'),
        ({"conv_bias": "no"}, "conv_bias has to be true or false, and is 'no'"),
        ({"conv_dim": 1024}, "conv_dim 1024 is not hidden_size 2048"),
        ({"conv_dim_out": 4096}, "conv_dim_out 4096 is not hidden_size 2048"),
        ({"block_dim": 4096}, "block_dim 4096 is not hidden_size 2048"),
        ({"block_use_swiglu": False}, "block_use_swiglu False is not supported"),
        ({"use_pos_enc": False}, "use_pos_enc False is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu is not supported"),
        ({"block_multiple_of": 0}, "block_multiple_of 0: "),
        ({"block_ffn_dim_multiplier": 0}, "block_ffn_dim_multiplier 0: "),
        ({"full_attn_idxs": []}, "no layer attends"),
        ({"full_attn_idxs": 5}, "full_attn_idxs has to be a list, and is 5"),
        ({"layer_types": "conv"}, "layer_types has to be a list, and is 'conv'"),
        ({"layer_types": ["linear_attention"] * 16}, "layer_types linear_attention are not"),
        ({"layer_types": ["conv", "full_attention"]}, "2 layer_types, .* for 16 layers"),
        ({"norm_eps": "small"}, 'norm_eps has to be a number, and is "small"'),
    ],
)
def test_configs_that_cannot_be_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnusableCheckpoint, match=text):
        parse_config(DENSE | changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layer_types": None}, "layer_types"),
        ({"num_dense_layers": "two"}, 'num_dense_layers has to be .* "two"'),
        ({"num_experts": 2}, "4 experts per token, and only 2"),
        ({"use_expert_bias": 1}, "use_expert_bias has to be true or false, and is 1"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnusableCheckpoint, match=text):
        parse_config(MIXTURE | changes)
