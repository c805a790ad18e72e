"""Models whose layers have one part each: attention, a state, an MLP or experts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace as with_fields
from safetensors.torch import load_file, save_file

from engine.checkpoints.checkpoint import WEIGHTS
from engine.errors import UnusableCheckpoint
from engine.kernels.products import TorchProducts
from engine.kernels.rows import QuantizedRows
from engine.models.config import parse_config
from engine.models.decoder import Decoder
from engine.models.experts import LatentExperts, SparseMlp, StackedExperts
from engine.models.mlp import UngatedMlp
from engine.request import Sampling
from engine.running.device import DeviceRunner
from tests.fakes.adapters import make_adapter, named
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import load, prompt, requests, run, runner_of
from tests.fakes.mixers import BIASES, GROUPS, KINDS, LATENTS, STATELESS
from tests.fakes.mixtures import stack_experts
from tests.fakes.published_mixers import MIXERS
from tests.fakes.ranks import ranked

GREEDY = Sampling(max_tokens=16, temperature=0, ignore_eos=True)
PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64)]
FAMILY = "nemotron_h"
SHAPES: dict[str, dict[str, Any]] = {
    "plain": STATELESS,
    "latents": {**STATELESS, **LATENTS, **GROUPS, **BIASES},
}


@pytest.mark.parametrize("model", MIXERS)
def test_only_what_is_there_is_counted(model: str) -> None:
    config, letters = parse_config(MIXERS[model]), MIXERS[model]["hybrid_override_pattern"]
    assert config.num_layers == len(letters)
    assert config.kv_layers == letters.count("*")
    assert config.recurrent_layers == letters.count("M")
    assert config.dense_layers == letters.count("-")
    assert sum(layer.sparse for layer in config.layers) == letters.count("E")
    assert config.ropes == ()


def test_each_layer_has_the_part_that_its_kind_says(tmp_path: Path) -> None:
    engine = load(make_checkpoint(tmp_path, FAMILY, **STATELESS))
    assert isinstance(engine.decoder, Decoder)
    layers = engine.decoder.layers
    assert [layer.attention is not None for layer in layers] == [
        True,
        False,
        False,
        True,
        False,
    ]
    for layer in layers:
        assert (layer.attention is None) == (layer.attention_norm is None)
        assert (layer.mlp is None) == (layer.mlp_norm is None) == (layer.attention is not None)
    assert isinstance(layers[1].mlp, UngatedMlp)
    assert isinstance(layers[2].mlp, SparseMlp)
    assert engine.info.kv_layers == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_tensors_may_have_the_names_that_transformers_has(shape: str, tmp_path: Path) -> None:
    """And experts in one tensor each."""
    folder = make_checkpoint(tmp_path, FAMILY, **SHAPES[shape])
    expected = run(load(folder), requests(PROMPTS, GREEDY))
    stack_experts(folder)
    assert "model.norm_f.weight" in load_file(folder / WEIGHTS)
    assert run(load(folder), requests(PROMPTS, GREEDY)) == expected


def test_tensors_of_a_model_without_a_head_have_no_prefix(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, FAMILY)
    expected = load(folder).decoder
    tensors = load_file(folder / WEIGHTS)
    del tensors["lm_head.weight"]
    bare = {name.removeprefix("backbone."): one for name, one in tensors.items()}
    save_file(bare, folder / WEIGHTS, {"format": "pt"})
    edit_config(folder, {"architectures": ["NemotronHModel"]})
    ours = load(folder).decoder
    assert isinstance(ours, Decoder)
    assert isinstance(expected, Decoder)
    assert torch.equal(ours.norm.weight, expected.norm.weight)
    assert torch.equal(ours.embedding, expected.embedding)


def test_layers_of_multi_token_prediction_are_left_out(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, FAMILY)
    expected = run(load(folder), requests(PROMPTS, GREEDY))
    tensors = load_file(folder / WEIGHTS)
    extra = {f"mtp.layers.0.mixer.{name}.weight": torch.ones(3) for name in ("gate", "q_proj")}
    save_file({**tensors, **extra}, folder / WEIGHTS, {"format": "pt"})
    assert run(load(folder), requests(PROMPTS, GREEDY)) == expected


def test_a_layer_too_many_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, FAMILY)
    kinds = json.loads((folder / "config.json").read_text())[KINDS]
    edit_config(folder, {KINDS: kinds[:-1]})
    with pytest.raises(UnusableCheckpoint, match=r"tensors too many.*backbone\.layers\.4\."):
        load(folder)


@pytest.mark.parametrize("quantization", ["fp8", "int4", "int8"])
@pytest.mark.parametrize("latents", [{}, LATENTS], ids=["plain", "latents"])
def test_its_products_can_be_quantized(
    quantization: str, latents: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path, FAMILY, dtype="bfloat16", hidden_size=128, **latents)
    engine = load(folder, dtype="bfloat16", quantization=quantization)
    assert len(run(engine, requests(PROMPTS, GREEDY))[0]) == GREEDY.max_tokens


def test_weights_can_be_made_up(tmp_path: Path) -> None:
    engine = load(make_checkpoint(tmp_path, FAMILY), load_format="dummy")
    assert len(run(engine, requests(PROMPTS, GREEDY))[0]) == GREEDY.max_tokens


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
def test_ranks_share_out_a_model_without_states(
    shape: str, stacked: bool, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path, FAMILY, **SHAPES[shape])
    if stacked:
        stack_experts(folder)
    expected = run(load(folder), requests(PROMPTS, GREEDY))
    with ranked(folder, 2) as engine:
        assert run(engine, requests(PROMPTS, GREEDY)) == expected


@pytest.mark.parametrize("latents", [{}, LATENTS], ids=["plain", "latents"])
def test_on_a_device_its_experts_are_stacked(latents: dict[str, Any], tmp_path: Path) -> None:
    """And no fusion takes them for gated ones."""
    folder = make_checkpoint(tmp_path, FAMILY, **latents)
    expected = run(load(folder), requests(PROMPTS, GREEDY))
    accelerator = FakeAccelerator(products=TorchProducts())
    engine = on_device(folder, accelerator, enforce_eager=True)
    assert isinstance(engine.decoder, Decoder)
    sparse = engine.decoder.layers[3].mlp
    assert isinstance(sparse, SparseMlp)
    inner = sparse.experts.experts if isinstance(sparse.experts, LatentExperts) else None
    assert isinstance(inner or sparse.experts, StackedExperts)
    assert all(layer.few_mlp is None for layer in engine.decoder.layers)
    assert run(engine, requests(PROMPTS, GREEDY)) == expected


@pytest.mark.parametrize("latents", [{}, LATENTS], ids=["plain", "latents"])
def test_weights_in_fp8_get_rounded_rows(latents: dict[str, Any], tmp_path: Path) -> None:
    """A device's kernels round what they make; it is the same as rounding it afterwards."""
    folder = make_checkpoint(tmp_path, FAMILY, **latents)
    settings: dict[str, Any] = {"quantization": "fp8", "cpu_kernels": "torch"}
    accelerator = FakeAccelerator(products=TorchProducts())
    engine = on_device(folder, accelerator, enforce_eager=True, **settings)
    assert isinstance(engine.decoder, Decoder)
    dense = engine.decoder.layers[1].mlp
    assert isinstance(dense, UngatedMlp)
    assert isinstance(dense.activate(torch.ones(1, 48)), QuantizedRows)
    expected = run(load(folder, **settings), requests(PROMPTS, GREEDY))
    assert run(engine, requests(PROMPTS, GREEDY)) == expected


def test_adapters_may_have_the_names_that_were_published(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "base", FAMILY)
    adapter = make_adapter(folder, tmp_path / "ours", target_modules=["q_proj", "up_proj"])
    file, asked = adapter / "adapter_model.safetensors", requests(PROMPTS, GREEDY)
    asked = [with_fields(one, adapter="ours") for one in asked]
    expected = run(load(folder, lora_modules=named(adapter)), asked)
    factors = load_file(file)
    assert "base_model.model.model.layers.1.mixer.up_proj.lora_A.weight" in factors
    published = {
        name.replace(".model.layers.", ".backbone.layers."): one
        for name, one in factors.items()
    }
    save_file(published, file, {"format": "pt"})
    assert run(load(folder, lora_modules=named(adapter)), asked) == expected
    assert expected != run(load(folder), requests(PROMPTS, GREEDY))


def test_scales_of_kv_are_found_under_their_names(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, FAMILY)
    at, tensors = "backbone.layers.2.mixer", load_file(folder / WEIGHTS)
    tensors[f"{at}.k_proj.k_scale"] = torch.tensor(0.3)
    tensors[f"{at}.v_proj.v_scale"] = torch.tensor(3.0)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    engine = load(folder, kv_cache_dtype="fp8")
    assert isinstance(engine.decoder, Decoder)
    scales = [(one.key_scale, one.value_scale) for one in engine.decoder.config.layers]
    assert scales == [(1, 1), (1, 1), (0.5, 4), (1, 1), (1, 1)]
    assert len(run(engine, requests(PROMPTS, GREEDY))[0]) == GREEDY.max_tokens


def test_experts_that_ask_which_were_chosen_make_no_graphs(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, FAMILY, **LATENTS)
    engine = on_device(folder)
    runner = runner_of(engine)
    assert isinstance(runner, DeviceRunner)
    assert runner.graphs is None
    expected = run(load(folder), requests(PROMPTS, GREEDY))
    assert run(engine, requests(PROMPTS, GREEDY)) == expected


def test_heads_may_have_their_width_under_its_first_name() -> None:
    """As Nemotron-H 8B, which transformers would read with another."""
    raw = {**MIXERS["Nemotron Nano 9B v2"], "attention_head_dim": 64}
    del raw["head_dim"]
    assert parse_config(raw).head_dim == 64


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({KINDS: None, "hybrid_override_pattern": "M-X"}, "hybrid_override_pattern 'M-X'"),
        ({KINDS: None, "hybrid_override_pattern": 5}, "hybrid_override_pattern 5 .* M"),
        ({KINDS: None}, "hybrid_override_pattern is missing"),
        ({KINDS: ["conv", "attention"]}, "layer_types conv"),
        ({KINDS: ["moe", "mlp"]}, "no layer attends"),
        ({"num_hidden_layers": 6}, "5 layer_types, .* for 6 layers"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act silu"),
        ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act gelu"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"n_shared_experts": 2}, "n_shared_experts 2"),
        ({"residual_in_fp32": True}, "residual_in_fp32 True"),
        ({"time_step_limit": [0.001, 0.1]}, r"time_step_limit \[0.001, 0.1\]"),
        ({"moe_latent_size": 0}, "moe_latent_size 0: "),
        ({"moe_shared_expert_intermediate_size": 0}, "expert_intermediate_size 0: "),
        ({"layer_norm_epsilon": "small"}, 'layer_norm_epsilon has to be .* "small"'),
        ({"mamba_num_heads": 3}, "mamba_num_heads 3 over n_groups 2"),
        ({"n_groups": 0}, "n_groups 0, .*zero"),
        ({"n_groups": -1}, "n_groups -1: "),
        ({KINDS: "attention"}, f"{KINDS} 'attention' is no list"),
        ({KINDS: 7}, f"{KINDS} 7 is no list"),
        ({"use_bias": 5}, "`bool`"),
        ({"conv_kernel": 1}, "conv_kernel 1: "),
        ({"ssm_state_size": "large"}, 'ssm_state_size has to be .* "large"'),
    ],
)
def test_configs_that_cannot_be_are_refused(
    changes: dict[str, object], text: str, tmp_path: Path
) -> None:
    raw = json.loads((make_checkpoint(tmp_path, FAMILY) / "config.json").read_text())
    given = {key: one for key, one in {**raw, **changes}.items() if one is not None}
    with pytest.raises(UnusableCheckpoint, match=text):
        parse_config(given)
