"""Checkpoints in 8 and in 4 bits: every number is what its layout says, or a clear refusal."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoints.checkpoint import WEIGHTS
from engine.checkpoints.linear import PlainLinear
from engine.checkpoints.storage import ExpertStack, StoredLinear
from engine.errors import UnusableCheckpoint
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run
from tests.fakes.kv_scales import add_scales
from tests.fakes.mixtures import stack_experts
from tests.fakes.packed import CONFIGS, pack, pack_stacks, spread
from tests.fakes.parts import parts_of
from tests.fakes.published_mixtures import PUBLISHED
from tests.integration.test_storage import whole_engine

# for q_proj's heads, two blocks of 128 that are cut within a head; inputs in groups of 32
SIZES = {"hidden_size": 160, "intermediate_size": 288}
SHAPE = {**SIZES, "head_dim": 40, "initializer_range": 0.05}
LATENTS = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "v_head_dim": 8}
STATES = {**SHAPE, "head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 32}
MAMBA = {**SIZES, "initializer_range": 0.05, "mamba_n_heads": 8, "mamba_d_state": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**SHAPE, "attention_bias": True},
    "phi3": {**SIZES, "initializer_range": 0.05},
    "qwen3_moe": {**SHAPE, "head_dim": 32, "moe_intermediate_size": 64},
    "deepseek_v3": {
        "hidden_size": 160,
        "intermediate_size": 288,
        "moe_intermediate_size": 64,
        **LATENTS,
    },
    "glm4_moe": {**SHAPE, "head_dim": 32, "moe_intermediate_size": 64, "attention_bias": True},
    "minimax_m2": {**SHAPE, "head_dim": 32, "rotary_dim": 16},
    "qwen3_next": {
        **STATES,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3_5_text": STATES,
    "bamba": MAMBA,
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 192},
    "granitemoehybrid": {**MAMBA, "shared_intermediate_size": 64},
    "nemotron_h": {
        **SHAPE,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 96,
        "moe_latent_size": 32,
        "mamba_num_heads": 8,
    },
    "lfm2": {**SHAPE, "block_multiple_of": 96},
    "gemma4_text": {
        **SHAPE,
        "head_dim": 32,
        "global_head_dim": 64,
        "hidden_size_per_layer_input": 32,
    },
    "lfm2_moe": {**SHAPE, "head_dim": 32, "moe_intermediate_size": 64},
}
EIGHT = [one for one in CONFIGS if "fp8" in one or "float" in one]


def made(folder: Path, family: str, layout: str) -> tuple[Path, Path]:
    """Packed, and with the same numbers in float32."""
    plain, packed = folder / "plain", folder / "packed"
    make_checkpoint(plain, family, **FAMILIES[family])
    pack(plain, packed, layout)
    return packed, plain


def numbers(model: object) -> Iterator[Tensor]:
    """The weights of all products within, in the order of the model."""
    for part in parts_of(model):
        if isinstance(part, PlainLinear):
            yield part.weight.float()
        elif isinstance(part, StoredLinear | ExpertStack):
            yield from (part.weight.whole(one) for one in range(part.weight.shape[0]))


def narrow(folder: Path, **settings: object) -> TorchEngine:
    return load(folder, cpu_kernels="torch", **settings)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", CONFIGS)
def test_every_number_is_what_the_layout_says(layout: str, family: str, tmp_path: Path) -> None:
    packed, plain = made(tmp_path, family, layout)
    ours, theirs = narrow(packed), whole_engine(plain)
    pairs = list(zip(numbers(ours.decoder), numbers(theirs.decoder), strict=True))
    assert len(pairs) > 6
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    answer, exact = (prompt_logits(one, prompt(30), 30) for one in (ours, theirs))
    if layout not in EIGHT:
        torch.testing.assert_close(answer, exact, rtol=1e-3, atol=1e-3)
    elif family in ("llama", "phi3"):  # routers choose otherwise for a little noise
        assert (answer - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "minimax_m2"])
def test_experts_of_eight_bits_may_be_stacked(family: str, tmp_path: Path) -> None:
    """In the tensors that transformers has, each with scales of its blocks."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    stack_experts(make_checkpoint(plain, family, **FAMILIES[family]))
    pack_stacks(plain, packed)
    pairs = zip(
        numbers(narrow(packed).decoder), numbers(whole_engine(plain).decoder), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_kimi_k2_as_published(tmp_path: Path) -> None:
    """In eight bits, over several files, and with code for transformers that nobody needs."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    make_checkpoint(plain, "kimi_k2", **FAMILIES["deepseek_v3"])
    pack(plain, packed, "fp8")
    spread(packed, 3)
    edit_config(packed, {"auto_map": PUBLISHED["Kimi K2"]["auto_map"]})
    ours, theirs = narrow(packed), whole_engine(plain)
    pairs = list(zip(numbers(ours.decoder), numbers(theirs.decoder), strict=True))
    assert len(pairs) > 6
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_minimax_m2_names_its_eight_bits_as_torch_does(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    make_checkpoint(plain, "minimax_m2", **FAMILIES["minimax_m2"])
    pack(plain, packed, "fp8")
    before = run(narrow(packed), requests([prompt(30)]))
    edit_config(packed, {"quantization_config": PUBLISHED["MiniMax M2"]["quantization_config"]})
    assert run(narrow(packed), requests([prompt(30)])) == before


@pytest.mark.parametrize("layout", ["fp8", "awq"])
def test_chunks_and_company_change_no_token(layout: str, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, "llama", layout)
    prompts = [prompt(length) for length in (3, 19, 40)]
    together = run(narrow(packed, max_num_batched_tokens=16), requests(prompts))
    alone = [run(narrow(packed), requests([one]))[0] for one in prompts]
    assert together == alone


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        (
            {"cpu_kernels": "torch", "quantization": "int4"},
            UnusableCheckpoint,
            "--quantization int4: the checkpoint is quantized already, in fp8",
        ),
        (
            {"cpu_kernels": "torch", "load_format": "dummy"},
            UnusableCheckpoint,
            "dummy: quantized weights",
        ),
        ({"model_impl": "transformers"}, UnusableCheckpoint, "quantized"),
    ],
)
def test_what_does_not_go_with_such_a_checkpoint(
    settings: dict[str, object], error: type[Exception], text: str, tmp_path: Path
) -> None:
    packed, _ = made(tmp_path, "llama", "fp8")
    with pytest.raises(error, match=text):
        load(packed, **settings)


@pytest.mark.parametrize(
    ("layout", "changes", "text"),
    [
        ("fp8", {"weight_block_size": [64, 64]}, "weight_block_size .64, 64. is not supp"),
        ("fp8", {"activation_scheme": "static"}, "activation_scheme static"),
        ("fp8", {"scale_fmt": "e5m2"}, "scale_fmt e5m2"),
        ("float-quantized", {"format": "int-quantized"}, "format int-quantized"),
        ("fp8 of ModelOpt", {"quant_algo": "NVFP4"}, "modelopt: quant_algo NVFP4"),
        ("float-quantized", {"config_groups": {}}, "0 config_groups"),
        ("awq", {"bits": 8}, "bits 8"),
        ("awq", {"group_size": -1}, "group_size -1"),
        ("awq", {"version": "gemv"}, "version gemv"),
        ("awq", {"version": None, "format": "gemv"}, "format gemv"),
        ("gptq", {"desc_act": "static"}, "desc_act static"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format marlin"),
        ("gptq", {"format": "gptq_v2"}, "format gptq_v2"),
        ("gptq", {"quant_method": "bitsandbytes"}, "quant_method bitsandbytes.*fp8, fbgemm"),
    ],
)
def test_what_is_not_done_is_refused_by_name(
    layout: str, changes: dict[str, object], text: str, tmp_path: Path
) -> None:
    packed, _ = made(tmp_path, "llama", layout)
    edit_config(packed, {"quantization_config": {**CONFIGS[layout], **changes}})
    with pytest.raises(UnusableCheckpoint, match=text):
        narrow(packed)


def test_groups_out_of_order_and_scales_that_are_missing_are_named(tmp_path: Path) -> None:
    packed, _ = made(tmp_path, "llama", "gptq")
    tensors, name = load_file(packed / WEIGHTS), "model.layers.1.mlp.down_proj"
    tensors[f"{name}.g_idx"] = tensors[f"{name}.g_idx"].flip(0)
    save_file(tensors, packed / WEIGHTS, {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match=f"{name}.g_idx: .* without desc_act"):
        narrow(packed)
    del tensors[f"{name}.scales"]
    save_file(tensors, packed / WEIGHTS, {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match=f"{name}.scales is missing"):
        narrow(packed)


def test_biases_of_zeros_that_came_with_gptq_are_ignored(tmp_path: Path) -> None:
    """AutoGPTQ gave one to every product; any other number is of another model."""
    packed, _ = made(tmp_path, "phi3", "gptq")
    before, tensors = run(narrow(packed), requests([prompt(30)])), load_file(packed / WEIGHTS)
    for scales in [name for name in tensors if name.endswith(".scales")]:
        bias = scales.replace(".scales", ".bias")
        tensors[bias] = torch.zeros(tensors[scales].shape[1], dtype=torch.float16)
    save_file(tensors, packed / WEIGHTS, {"format": "pt"})
    assert run(narrow(packed), requests([prompt(30)])) == before
    tensors["model.layers.1.mlp.down_proj.bias"][7] = 1
    save_file(tensors, packed / WEIGHTS, {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match=r"1 tensors too many.*down_proj\.bias"):
        narrow(packed)


@pytest.mark.parametrize("layout", ["fp8", "awq"])
def test_a_layer_with_some_experts_unquantized_is_refused(layout: str, tmp_path: Path) -> None:
    packed, plain = made(tmp_path, "qwen3_moe", layout)
    tensors, whole = load_file(packed / WEIGHTS), load_file(plain / WEIGHTS)
    expert = "model.layers.1.mlp.experts.3."
    tensors = {name: one for name, one in tensors.items() if not name.startswith(expert)}
    tensors |= {name: one for name, one in whole.items() if name.startswith(expert)}
    save_file(tensors, packed / WEIGHTS, {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match="some experts of a layer are quantized"):
        narrow(packed)


KV_SCALES = {
    "float-quantized": ("k_scale", "v_scale"),  # of llm-compressor
    "float-quantized static": ("k_proj.output_scale", "v_proj.output_scale"),  # once
    "fp8 of ModelOpt": ("k_proj.k_scale", "v_proj.v_scale"),
    "fp8 static": ("kv_scale",),
}
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}


@pytest.mark.parametrize("layout", KV_SCALES)
def test_scales_of_a_kv_cache_in_8_bits_are_not_used_for_another(
    layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed, _ = made(tmp_path, "llama", layout)
    before = run(narrow(packed), requests([prompt(30)]))
    edit_config(packed, {"quantization_config": {**CONFIGS[layout], "kv_cache_scheme": SCHEME}})
    add_scales(packed, dict.fromkeys(KV_SCALES[layout], (1e-3, 1e-3)))
    with caplog.at_level("INFO"):
        assert run(narrow(packed), requests([prompt(30)])) == before
    assert "scales for a KV cache in 8 bits are not used" in caplog.text


@pytest.mark.parametrize(
    "told",
    [
        {"quant_method": "compressed-tensors", "config_groups": {}, "format": "dense"},
        {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"},
    ],
)
def test_a_checkpoint_that_quantizes_only_its_kv_cache_is_a_plain_one(
    told: dict[str, object], tmp_path: Path
) -> None:
    plain = make_checkpoint(tmp_path / "plain", **FAMILIES["llama"])
    before = run(load(plain), requests([prompt(30)]))
    edit_config(plain, {"quantization_config": {**told, "kv_cache_scheme": SCHEME}})
    add_scales(plain)
    assert run(load(plain), requests([prompt(30)])) == before


def test_older_checkpoints_of_modelopt_have_a_file_of_their_own(tmp_path: Path) -> None:
    packed, _ = made(tmp_path, "llama", "fp8 of ModelOpt")
    before = run(narrow(packed), requests([prompt(30)]))
    edit_config(packed, {"quantization_config": None})
    how = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    told = {"producer": {"name": "modelopt", "version": "0.19.0"}, "quantization": how}
    (packed / "hf_quant_config.json").write_text(json.dumps(told))
    assert run(narrow(packed), requests([prompt(30)])) == before
