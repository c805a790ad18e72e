"""Models whose layers attend and keep a state side by side, and their multipliers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoints.checkpoint import WEIGHTS
from engine.errors import UnusableCheckpoint
from engine.models.config import parse_config
from engine.models.decoder import Decoder
from engine.models.side_by_side import SideBySide
from engine.ranks.opening import refuse_ranks
from engine.request import Sampling
from engine.running.replaying import ReplayingRunner
from engine.settings import EngineConfig
from tests.fakes.checkpoints import FAMILY_SHAPE, make_checkpoint
from tests.fakes.driver import load, prompt, requests, run, runner_of
from tests.fakes.kv_scales import add_scales
from tests.fakes.published_mambas import MAMBAS

GREEDY = Sampling(max_tokens=20, temperature=0, ignore_eos=True)
PUBLISHED, GIVEN = MAMBAS["Falcon-H1 0.5B"], FAMILY_SHAPE["falcon_h1"]


def weights_of(folder: Path, dtype: str) -> dict[str, Tensor]:
    """Of the first layer's products as they are multiplied, by what they do."""
    decoder = load(folder, dtype=dtype, cpu_kernels="torch", model_impl="pdserve").decoder
    assert isinstance(decoder, Decoder)
    layer: Any = decoder.layers[0]
    both, mlp = layer.attention, layer.mlp
    assert type(both) is SideBySide
    attention: Any = both.attention
    mamba: Any = both.recurrent
    return {
        "self_attn.qkv": attention.query_key_value.weight,
        "self_attn.o_proj": attention.output.weight,
        "mamba.in_proj": mamba.inward.weight,
        "mamba.out_proj": mamba.output.weight,
        "feed_forward.gate_up": mlp.gate_up.weight,
        "feed_forward.down_proj": mlp.down.weight,
    }


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_are_multiplied_and_rounded_once(dtype: str, tmp_path: Path) -> None:
    half = getattr(torch, dtype)
    ours = weights_of(make_checkpoint(tmp_path, "falcon_h1", dtype=dtype), dtype)
    stored = load_file(tmp_path / WEIGHTS)

    def times(name: str, number: float | Tensor) -> Tensor:
        return (stored[f"model.layers.0.{name}.weight"].float() * number).to(half)

    gate, output = GIVEN["mlp_multipliers"]
    both = [
        times(f"feed_forward.{name}_proj", one) for name, one in (("gate", gate), ("up", 1))
    ]
    assert torch.equal(ours["feed_forward.gate_up"], torch.cat(both))
    assert torch.equal(ours["feed_forward.down_proj"], times("feed_forward.down_proj", output))
    parts = [
        times(f"self_attn.{name}_proj", GIVEN["attention_in_multiplier"]) for name in "qkv"
    ]
    assert torch.equal(ours["self_attn.qkv"], torch.cat(parts))
    for at, key in (("self_attn.o_proj", "attention_out"), ("mamba.out_proj", "ssm_out")):
        assert torch.equal(ours[at], times(at, GIVEN[f"{key}_multiplier"]))
    widths = torch.tensor([64, 64, 32, 32, 4])  # gates, values, keys, queries, rates
    each = torch.tensor(GIVEN["ssm_multipliers"]).repeat_interleave(widths)
    each = each[:, None] * GIVEN["ssm_in_multiplier"]
    gates, values, keys, queries, rates = times("mamba.in_proj", each).split(widths.tolist())
    ordered = torch.cat((queries, keys, values, gates, rates))
    assert torch.equal(ours["mamba.in_proj"], ordered)


def test_scales_of_kv_and_multipliers_are_of_the_same_products(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "falcon_h1")
    asked = requests([prompt(length) for length in (1, 17, 40)], GREEDY)
    before = weights_of(folder, "float32")["self_attn.o_proj"]
    add_scales(folder, {"k_scale": [0.25], "v_scale": [0.5]})
    engine = load(folder, kv_cache_dtype="fp8", cpu_kernels="torch")
    assert isinstance(engine.decoder, Decoder)
    both: Any = engine.decoder.layers[0].attention
    assert torch.equal(both.attention.output.weight, 0.5 * before)
    assert all(len(answer) == GREEDY.max_tokens for answer in run(engine, asked))


def test_decode_steps_are_replayed(tmp_path: Path) -> None:
    """With products that are kernels on any CPU, as all between them are."""
    folder = make_checkpoint(tmp_path, "falcon_h1")
    asked = requests([prompt(length) for length in (1, 17, 40)], GREEDY)
    whole: dict[str, object] = {"dtype": "bfloat16", "quantization": "int8"}
    engine = load(folder, **whole)
    assert run(engine, asked) == run(load(folder, enforce_eager=True, **whole), asked)
    runner = runner_of(engine)
    assert isinstance(runner, ReplayingRunner)
    assert runner.replays


def test_each_published_layer_has_kv_and_a_state() -> None:
    config = parse_config(PUBLISHED)
    assert config.kv_layers == config.recurrent_layers == config.num_layers == 36
    assert config.attention_scale == pytest.approx(0.390625 / 8)
    assert config.mamba is not None
    assert not config.mamba.norm


def test_ranks_that_cannot_share_out_a_group_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "falcon_h1", mamba_n_groups=1)
    with pytest.raises(UnusableCheckpoint, match="size 2: 1 key heads of layers with a state"):
        refuse_ranks(EngineConfig(model=str(folder), tensor_parallel_size=2))


def test_a_norm_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = make_checkpoint(
        tmp_path, "falcon_h1", mamba_rms_norm=True, mamba_norm_before_gate=False
    )
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.layers.1.mamba.norm.weight"]
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match=r"layers\.1\.mamba\.norm\.weight is missing"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mamba_n_heads": 23}, "mamba_n_heads 23 of mamba_d_head 64 are not mamba_d_ssm 1536"),
        ({"mamba_d_ssm": None}, "are not mamba_expand 2 times hidden_size 1024"),
        ({"mamba_d_ssm": 0}, "are not mamba_d_ssm 0"),
        ({"mamba_d_ssm": "wide"}, "mamba_d_ssm has to be a number"),
        ({"mamba_n_groups": 5}, "mamba_n_heads 24 over mamba_n_groups 5"),
        ({"mamba_rms_norm": "no"}, "mamba_rms_norm has to be true or false, and is 'no'"),
        ({"projectors_bias": None}, "projectors_bias has to be true or false, and is None"),
        (
            {"mamba_rms_norm": True, "mamba_norm_before_gate": True},
            "mamba_norm_before_gate True is not supported",
        ),
        ({"ssm_in_multiplier": "one"}, 'ssm_in_multiplier has to be a number, and is "one"'),
        ({"ssm_in_multiplier": None}, "ssm_in_multiplier null: Expected"),
        ({"key_multiplier": None}, "key_multiplier has to be a number, and is None"),
        ({"lm_head_multiplier": None}, "lm_head_multiplier null: Expected"),
        ({"mlp_multipliers": [1.0]}, r"mlp_multipliers .* list of 2 numbers, and is \[1.0\]"),
        ({"ssm_multipliers": [1, 1, 1, 1, "1"]}, "ssm_multipliers has to be a list of 5 num"),
        ({"ssm_multipliers": 0.5}, "ssm_multipliers has to be a list of 5 numbers, and is 0.5"),
        ({"attn_layer_indices": [3]}, r"attn_layer_indices \[3\] is not supported"),
        ({"mamba_use_mlp": False}, "mamba_use_mlp False is not supported"),
        ({"time_step_limit": [0.001, 0.1]}, r"time_step_limit \[0.001, 0.1\] is not"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
    ],
)
def test_configs_that_cannot_be_are_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(UnusableCheckpoint, match=text):
        parse_config(PUBLISHED | changes)
