"""A checkpoint's scales of a KV cache in 8 bits (engine/models/kv_scales.py)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace as with_fields
from safetensors.torch import load_file, save_file

from engine.checkpoints.checkpoint import WEIGHTS
from engine.errors import UnusableCheckpoint
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.grouped_attention import GroupedAttention
from engine.models.prediction_head import PredictionHead
from engine.sizing import STORED_TYPES
from engine.torch_engine import TorchEngine
from tests.fakes.adapters import make_adapter, named
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.draft_heads import headed, make_head_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run
from tests.fakes.fetched import split
from tests.fakes.kv_scales import KEYS, ROUNDED, SCALES, VALUES, add_scales
from tests.fakes.packed import CONFIGS, pack
from tests.fakes.ranks import ranked
from tests.integration.test_packed import FAMILIES as PACKED_FAMILIES

FAMILIES = [
    "llama",
    "qwen2",  # biases
    "qwen3",  # norms of each head
    "olmo2",  # norms over all heads
    "gemma2",  # scores are capped
    "gemma3_text",  # norms of 1 + weight
    "gpt_oss",  # sinks
    "glm4",  # rotation reorders a head's dimensions
]
FP8: dict[str, Any] = {"kv_cache_dtype": "fp8"}
PROMPTS = [prompt(length) for length in (1, 15, 33, 75)]


def scales_of(engine: TorchEngine) -> list[tuple[float, float]]:
    config = engine.decoder.config
    assert isinstance(config, ModelConfig)
    return [(layer.key_scale, layer.value_scale) for layer in config.layers]


@pytest.fixture
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV is scaled, but not rounded: then nothing may change."""
    monkeypatch.setitem(STORED_TYPES, "fp8", None)


def assert_exact(plain: TorchEngine, scaled: TorchEngine) -> None:
    """The same numbers, from KV that was divided by the scales."""
    assert scales_of(plain) == [(1, 1)] * 2
    assert scales_of(scaled) == ROUNDED
    found = [prompt_logits(engine, prompt(40), 25) for engine in (plain, scaled)]
    assert torch.equal(*found)
    ours, theirs = (engine.memory.blocks for engine in (scaled, plain))
    for layer, each in enumerate(ROUNDED):
        for part, scale in enumerate(each):
            assert torch.equal(ours[:, layer, part] * scale, theirs[:, layer, part])


@pytest.mark.usefixtures("_wide")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_folding_changes_no_number(family: str, dtype: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family)
    plain = load(folder, dtype=dtype, **FP8)
    add_scales(folder)
    assert_exact(plain, load(folder, dtype=dtype, **FP8))


def test_the_log_says_by_what(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = add_scales(make_checkpoint(tmp_path))
    with caplog.at_level("INFO"):
        load(folder, **FP8)
    assert "keys are divided by 0.5 to 8, values by 0.015625 to 1" in caplog.text


@pytest.mark.usefixtures("_wide")
@pytest.mark.parametrize("layout", CONFIGS)
@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_nor_in_packed_weights(layout: str, kernels: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    make_checkpoint(plain, "llama", **PACKED_FAMILIES["llama"])
    pack(plain, packed, layout)
    settings = {**FP8, "dtype": "bfloat16", "cpu_kernels": kernels}
    before = load(packed, **settings)
    add_scales(packed)
    assert_exact(before, load(packed, **settings))


@pytest.mark.usefixtures("_wide")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_nor_in_adapters(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", family)
    modules = named(make_adapter(folder, tmp_path / "adapter"))
    asked = [with_fields(one, adapter="adapter") for one in requests(PROMPTS)]
    before = run(load(folder, lora_modules=modules, **FP8), asked)
    assert before != run(load(folder, **FP8), requests(PROMPTS))
    engine = load(add_scales(folder), lora_modules=modules, **FP8)
    assert scales_of(engine) == ROUNDED
    assert run(engine, asked) == before


def test_so_weak_values_are_not_lost(tmp_path: Path) -> None:
    """Below 2**-9 numbers of 8 bits are multiples of 2**-9."""
    folder, weak = make_checkpoint(tmp_path), 1e-3
    weights = load_file(folder / WEIGHTS)
    for product, factor in (("v_proj", weak), ("o_proj", 1 / weak)):
        weights |= {name: one * factor for name, one in weights.items() if product in name}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    exact = prompt_logits(load(folder), prompt(40), 40)
    before = prompt_logits(load(folder, **FP8), prompt(40), 40)
    add_scales(folder, {"v_scale": (2 * weak, 2 * weak)})
    after = prompt_logits(load(folder, **FP8), prompt(40), 40)
    assert (after - exact).norm() < 0.2 * (before - exact).norm()


@pytest.mark.parametrize(
    "names",
    [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
def test_they_have_several_names(names: tuple[str, str], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    add_scales(folder, dict(zip(names, (KEYS, VALUES), strict=True)))
    assert scales_of(load(folder, **FP8)) == ROUNDED


def test_one_may_be_of_both(tmp_path: Path) -> None:
    folder = add_scales(make_checkpoint(tmp_path), {"kv_scale": KEYS})
    assert scales_of(load(folder, **FP8)) == [(0.5, 0.5), (8, 8)]


def test_of_scales_of_heads_the_largest_is_taken(tmp_path: Path) -> None:
    folder = add_scales(make_checkpoint(tmp_path), {"k_scale": ([0.1, 0.2], [3.0, 1.0])})
    assert scales_of(load(folder, **FP8)) == [(0.25, 1), (4, 1)]


def test_a_scale_of_queries_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = add_scales(make_checkpoint(tmp_path), {**SCALES, "q_scale": (0.1, 0.1)})
    with caplog.at_level("INFO"):
        assert scales_of(load(folder, **FP8)) == ROUNDED
    assert "2 scales for a KV cache in 8 bits are not used" in caplog.text


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("llama", {**FP8, "dtype": "float16"}),  # numbers could become too small
        ("phi3", FP8),  # one tensor has queries, keys and values
        ("deepseek_v3", FP8),  # latents are keys and values
    ],
)
def test_where_they_are_not_used(
    family: str, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(tmp_path, family)
    before = run(load(folder, **settings), requests(PROMPTS))
    with caplog.at_level("INFO"):
        engine = load(add_scales(folder), **settings)
    assert scales_of(engine) == [(1, 1)] * 2
    assert run(engine, requests(PROMPTS)) == before
    assert "4 scales for a KV cache in 8 bits are not used" in caplog.text


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-30])
def test_a_scale_out_of_all_bounds_is_refused(scale: float, tmp_path: Path) -> None:
    folder = add_scales(make_checkpoint(tmp_path), {"v_scale": (1.0, scale)})
    with pytest.raises(UnusableCheckpoint, match=r"layers\.1\.self_attn\.v_scale: a scale of"):
        load(folder, **FP8)


def test_nodes_with_other_scales_are_not_paired(tmp_path: Path) -> None:
    """A part of the fingerprint says so; scales of 1 are none."""
    ones = dict.fromkeys(SCALES, (1.0, 1.0))
    folder = make_checkpoint(tmp_path)
    told = [
        load(add_scales(folder, scales), **FP8).info.made_of["kv_cache_dtype"]
        for scales in ({}, ones, SCALES)
    ]
    assert told[:2] == ["float8_e4m3fn of float32"] * 2
    assert told[2] == "float8_e4m3fn of float32, scaled"


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_cluster_says_what_one_engine_says(family: str, tmp_path: Path) -> None:
    folder = add_scales(make_checkpoint(tmp_path, family))
    asked, whole = requests(PROMPTS), load(folder, **FP8)
    expected = run(whole, asked)
    assert expected != run(load(folder), asked)
    source, sink = (load(folder, block_size=size, **FP8) for size in (16, 32))
    assert split(source, sink, asked)[1] == [token for answer in expected for token in answer]
    assert run(on_device(folder, FakeAccelerator(), **FP8), asked) == expected
    with ranked(folder, 2, **FP8) as engine:
        assert run(engine, asked) == expected
        assert engine.info.fingerprint == whole.info.fingerprint


def test_a_draft_head_has_no_scale(tmp_path: Path) -> None:
    """Not even that of the last layer, which it is shaped like."""
    folder = make_head_checkpoint(tmp_path, "glm4_moe")
    add_scales(folder, {"k_scale": KEYS})
    decoder = load(folder, **headed(), **FP8).decoder
    assert isinstance(decoder, Decoder)
    assert isinstance(decoder.draft_head, PredictionHead)
    found = list[float]()
    for layer in (*decoder.layers, decoder.draft_head.layer):
        assert isinstance(layer.attention, GroupedAttention)
        found.append(layer.attention.style.scale)
    assert found == [found[2] * 0.5, found[2] * 8, found[2]]
