"""Gemma 4: what its configs say, the two kinds of its layers, and what is left out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.attention.kv_memory import LayerKind
from engine.checkpoints.checkpoint import WEIGHTS
from engine.errors import UnsupportedArchitecture, UnusableCheckpoint
from engine.models.config import parse_config
from engine.models.decoder import Decoder, kv_shape_of
from engine.models.grouped_attention import GroupedAttention
from engine.sizing import STORED_TYPES
from kv_transfer.layout import can_pull
from node.identity import layout_of
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import GREEDY, load, prompt, prompt_logits, requests, run
from tests.fakes.eagle_heads import eagled, make_eagle
from tests.fakes.kv_scales import add_scales
from tests.fakes.published_gemmas4 import GEMMAS4

PROMPTS = [prompt(length) for length in (1, 17, 40)]
SMALL, LARGE, MIXTURE = GEMMAS4.values()
TEXT: dict[str, Any] = {"model_type": "gemma4_text", **SMALL["text_config"]}


def test_what_published_models_consist_of() -> None:
    small, large, mixture = (parse_config(one) for one in GEMMAS4.values())
    shapes = [kv_shape_of(one) for one in (small, large, mixture)]
    assert [(one.layers, one.heads, one.width) for one in shapes] == [
        (12, 1, 256),
        (50, 16, 256),
        (25, 8, 256),
    ]
    kinds = LayerKind(3, 1, 512), LayerKind(10, 4, 512), LayerKind(5, 2, 512)
    assert [one.global_layers for one in shapes] == [*kinds]
    assert [layer.keys_are_values for layer in large.layers] == ([False] * 5 + [True]) * 10
    assert [layer.wide_mlp for layer in small.layers] == [False] * 15 + [True] * 20
    assert (small.layer_input_width, large.layer_input_width) == (256, None)
    assert mixture.experts is not None
    assert (mixture.dense_layers, mixture.experts.routing.num_experts) == (30, 128)


def test_layers_without_kv_read_the_last_before_them_that_attends_alike() -> None:
    config = parse_config(SMALL)
    sources = [config.kv_source_of(index) for index in range(config.num_layers)]
    assert sources == [*range(15), *([13] * 4 + [14]) * 4]
    wide = parse_config({**TEXT, "sliding_window": None})  # as alike as windows make them
    assert [wide.kv_source_of(index) for index in range(config.num_layers)] == sources
    read = [config.kv_layer_of(index) for index in range(config.num_layers)]
    own = [0, 1, 2, 3, 12, 4, 5, 6, 7, 13, 8, 9, 10, 11, 14]
    assert read == [*own, *([11] * 4 + [14]) * 4]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention all"),
        ({"num_kv_shared_layers": 32}, "num_kv_shared_layers 32 leaves no KV"),
        ({"num_kv_shared_layers": 36}, "num_kv_shared_layers 36 leaves no KV"),
        ({"num_kv_shared_layers": "all"}, 'num_kv_shared_layers .* is "all"'),
        ({"vocab_size_per_layer_input": 1000}, "vocab_size_per_layer_input 1000"),
        ({"global_head_dim": 768}, "global_head_dim 768 and head_dim 256"),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "8 heads over 3"),
        ({"per_layer_config": {"4": {"head_dim": 512}}}, "per_layer_config differs"),
        ({"per_layer_config": {"0": {"head_dim": 512}}}, "per_layer_config differs"),
        ({"enable_moe_block": True}, "num_experts"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises((UnusableCheckpoint, UnsupportedArchitecture), match=text):
        parse_config({**TEXT, **changes})


def test_each_kind_of_layers_has_its_heads(tmp_path: Path) -> None:
    decoder = load(make_checkpoint(tmp_path, "gemma4")).decoder
    assert isinstance(decoder, Decoder)
    attentions = [layer.attention for layer in decoder.layers]
    assert all(isinstance(one, GroupedAttention) for one in attentions)
    widths = [rope.shape[2] for rope in decoder.ropes]
    assert widths == [8, 16]
    assert decoder.ropes[1][5, 1, 2:8].eq(0).all(), "only a quarter of the pairs turn"


def test_a_node_tells_both_kinds_of_layers(tmp_path: Path) -> None:
    small = make_checkpoint(tmp_path / "small", "gemma4_text")
    ours, other = (layout_of(load(small, block_size=size)) for size in (16, 8))
    assert (ours.layers, ours.kv_heads, ours.head_dim) == (2, 2, 8)
    kind = ours.global_layers, ours.global_kv_heads, ours.global_head_dim
    assert kind == (2, 2, 16)
    assert can_pull(ours, ours) is None
    why = can_pull(other, ours)
    assert why is not None
    assert "block" in why


def said(folder: Path) -> list[list[int]]:
    return run(load(folder), requests(PROMPTS, GREEDY))


def test_tensors_of_layers_that_share_kv_are_left_out(tmp_path: Path) -> None:
    """As published: transformers does not save them."""
    folder = make_checkpoint(tmp_path, "gemma4_text")
    expected, tensors = said(folder), load_file(folder / WEIGHTS)
    assert "model.layers.4.self_attn.q_proj.weight" in tensors
    for name, sizes in {"k_proj": (16, 32), "v_proj": (16, 32), "k_norm": (8,)}.items():
        tensors[f"model.layers.4.self_attn.{name}.weight"] = torch.randn(sizes)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    assert said(folder) == expected


@pytest.mark.parametrize("family", ["gemma4_text", "gemma4"])
def test_scales_of_kv_change_nothing_but_what_is_rounded(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are divided behind their norm; who reads another layer's KV knows its scales."""
    monkeypatch.setitem(STORED_TYPES, "fp8", None)
    folder = make_checkpoint(tmp_path, family)
    plain = load(folder, kv_cache_dtype="fp8")
    add_scales(folder, {"k_scale": [0.5, 8.0, 2.0, 4.0], "v_scale": [0.25, 1.0, 16.0, 2.0]})
    scaled = load(folder, kv_cache_dtype="fp8")
    decoder = scaled.decoder
    assert isinstance(decoder, Decoder)
    found = [(one.key_scale, one.value_scale) for one in decoder.config.layers]
    own = [(0.5, 0.25), (8.0, 1.0), (2.0, 16.0), (4.0, 2.0)]
    assert found == (own if family == "gemma4" else [*own, own[2], own[3]])
    logits = [prompt_logits(engine, prompt(40), 25) for engine in (plain, scaled)]
    torch.testing.assert_close(*logits, rtol=0, atol=0)


def test_heads_of_two_kinds_have_no_eagle_head(tmp_path: Path) -> None:
    """Its KV would be behind the local layers, in the way of the global ones."""
    model = make_checkpoint(tmp_path / "model", "gemma4_text")
    head = make_eagle(tmp_path / "head")
    with pytest.raises(UnusableCheckpoint, match="unlike the model's"):
        load(model, **eagled(head))


def test_images_and_sound_are_left_out(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "gemma4")
    expected, tensors = said(folder), load_file(folder / WEIGHTS)
    assert any(name.startswith("model.vision_tower.") for name in tensors)
    tensors |= {
        f"model.{part}.x.weight": torch.zeros(2) for part in ("audio_tower", "embed_audio")
    }
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    assert said(folder) == expected
