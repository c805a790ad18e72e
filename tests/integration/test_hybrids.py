"""Models most of whose layers keep a state: what engines do with them, and cannot do."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.attention.kv_memory import KvMemory, KvShape, StateShape
from engine.checkpoints.checkpoint import WEIGHTS
from engine.errors import EngineError, UnusableCheckpoint
from engine.kernels.recurrent import RecurrentShape
from engine.models.config import parse_config
from engine.request import Sampling
from engine.settings import EngineConfig
from engine.state_settings import settings_for
from engine.stepping.ahead import AheadStepper
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import assert_idle, eager, hand_over, load, prompt, requests, run
from tests.fakes.packed import pack
from tests.fakes.published_hybrids import HYBRIDS
from tests.fakes.published_mambas import MAMBAS

PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64, 90)]
WIDE: Mapping[str, Any] = dict.fromkeys(
    ("hidden_size", "intermediate_size", "shared_intermediate_size"), 128
)
GREEDY = Sampling(max_tokens=20, temperature=0, ignore_eos=True)


FAMILIES = ["qwen3_5_text", "granitemoehybrid", "falcon_h1", "lfm2"]


@pytest.fixture(scope="module", params=FAMILIES)
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hybrid"), request.param)


@pytest.fixture(scope="module")
def alone(hybrid: Path) -> list[list[int]]:
    engine = load(hybrid)
    return [run(engine, [one])[0] for one in requests(PROMPTS, GREEDY)]


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
def test_any_chunks_any_batch(
    hybrid: Path, alone: list[list[int]], chunk: int, kernels: str
) -> None:
    engine = load(hybrid, max_num_batched_tokens=chunk, cpu_kernels=kernels)
    assert run(engine, requests(PROMPTS, GREEDY)) == alone


def test_preempted_is_undisturbed(hybrid: Path, alone: list[list[int]]) -> None:
    block_bytes = load(hybrid).kv_regions[0].block_bytes
    engine = eager(load(hybrid, max_model_len=112, kv_cache_memory_bytes=14 * block_bytes))
    assert run(engine, requests(PROMPTS, GREEDY)) == alone
    assert engine.load.preemptions > 0


@pytest.mark.parametrize("graphs", [True, False])
def test_steps_launched_ahead_change_no_state_twice(
    hybrid: Path, alone: list[list[int]], graphs: bool
) -> None:
    block_bytes = load(hybrid).kv_regions[0].block_bytes
    settings: dict[str, object] = {
        "max_model_len": 112,
        "kv_cache_memory_bytes": 14 * block_bytes,
        "enforce_eager": not graphs,
    }
    engine = eager(on_device(hybrid, FakeAccelerator(draws=True), **settings))
    assert isinstance(engine.stepper, AheadStepper)
    assert run(engine, requests(PROMPTS, GREEDY)) == alone
    assert engine.load.preemptions > 0


def test_on_a_device_each_seat_has_a_token(hybrid: Path) -> None:
    settings = EngineConfig(model="", device="cuda", max_num_batched_tokens=7, max_num_seqs=8)
    shape = parse_config(json.loads((hybrid / "config.json").read_text()))
    with pytest.raises(UnusableCheckpoint, match=r"--max-num-batched-tokens 7: .*-seqs 8"):
        settings_for(settings, shape, torch.float32)
    many = replace(settings, max_num_batched_tokens=None, max_num_seqs=2049)
    with pytest.raises(UnusableCheckpoint, match="--max-num-batched-tokens 2048"):
        settings_for(many, shape, torch.float32)
    enough = replace(settings, max_num_batched_tokens=8)
    assert settings_for(enough, shape, torch.float32).block_size == 16


def test_memory_may_hold_anything_before(hybrid: Path, alone: list[list[int]]) -> None:
    engine = load(hybrid)
    assert isinstance(engine, TorchEngine)
    engine.memory.block_rows.fill_(float("nan"))
    assert run(engine, requests(PROMPTS, GREEDY)) == alone


def test_a_hand_over_takes_the_state_along(hybrid: Path, alone: list[list[int]]) -> None:
    source, sink = load(hybrid, max_num_batched_tokens=16), load(hybrid)
    assert hand_over(source, sink, requests(PROMPTS, GREEDY)) == alone
    assert_idle(source)
    assert_idle(sink)


@pytest.mark.parametrize("family", [*FAMILIES, "bamba"])
@pytest.mark.parametrize("quantization", ["fp8", "int4", "int8"])
def test_its_products_can_be_quantized(quantization: str, family: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, family, dtype="bfloat16", **WIDE)
    engine = load(tmp_path, dtype="bfloat16", quantization=quantization)
    assert len(run(engine, requests(PROMPTS, GREEDY))[0]) == GREEDY.max_tokens


def test_its_kv_can_be_in_fp8(hybrid: Path) -> None:
    engine = load(hybrid, kv_cache_dtype="fp8")
    assert engine.info.block_size == 64
    answers = run(engine, requests(PROMPTS, GREEDY))
    assert all(len(answer) == GREEDY.max_tokens for answer in answers)


def test_weights_can_be_made_up(hybrid: Path) -> None:
    engine = load(hybrid, load_format="dummy")
    assert len(run(engine, requests(PROMPTS, GREEDY))[0]) == GREEDY.max_tokens


def test_layers_of_multi_token_prediction_are_left_out(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen3_5_text")
    before = run(load(tmp_path), requests(PROMPTS, GREEDY))
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "mtp.fc.weight": torch.ones(2, 2)}, file, {"format": "pt"})
    assert run(load(tmp_path), requests(PROMPTS, GREEDY)) == before


def test_blocks_grow_until_they_hold_a_state(
    hybrid: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        engine = load(hybrid, block_size=3)
    size, state = engine.info.block_size, engine.memory.shape.state
    assert state is not None
    block_bytes = engine.kv_regions[0].block_bytes
    assert block_bytes - 3 * block_bytes // size < state.layer_bytes <= block_bytes
    assert f"--block-size is {size} and not 3" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        engine = load(hybrid, block_size=64)
    assert engine.info.block_size == 64
    assert "block-size" not in caplog.text


CANNOT: dict[str, Mapping[str, object]] = {
    "--speculative-config": {"speculative_config": '{"method": "ngram"}'},
    "--kv-disk-path": {"kv_disk_path": "somewhere"},
    "--kv-events-config": {"kv_cache_events": True},
}


@pytest.mark.parametrize("flag", CANNOT)
def test_what_states_forbid_is_refused(hybrid: Path, flag: str) -> None:
    with pytest.raises(EngineError, match=f"{flag}: .*state"):
        load(hybrid, **CANNOT[flag])


def test_it_cannot_draft_for_another(hybrid: Path, llama: Path) -> None:
    with pytest.raises(UnusableCheckpoint, match=r"--speculative-config: .* keeps a state"):
        load(llama, speculative_config=f'{{"model": "{hybrid}"}}')


def test_memory_has_to_hold_the_state_of_one_sequence(hybrid: Path) -> None:
    block_bytes = load(hybrid).kv_regions[0].block_bytes
    with pytest.raises(UnusableCheckpoint, match=r"hold 6 blocks.* needs 7"):
        load(hybrid, max_model_len=64, kv_cache_memory_bytes=6 * block_bytes)


def test_a_state_lies_where_no_other_does() -> None:
    net = RecurrentShape(2, 4, 8, 6, 3)
    shape = KvShape(2, 2, 16, state=StateShape(7, net))
    memory = KvMemory(shape, 5, 16, torch.float32, torch.device("cpu"))
    assert memory.state_blocks == 2
    ours = (2, 4)
    every = [memory.states(layer) for layer in range(7)]
    for layer, states in enumerate(every):
        states.memory[ours[states.place]].fill_(layer + 1)
        states.inputs[ours[states.place]].fill_(-layer - 1)
    for layer, states in enumerate(every):
        assert states.memory[ours[states.place]].eq(layer + 1).all()
        assert states.inputs[ours[states.place]].eq(-layer - 1).all()
    assert memory.bytes_of_blocks[[0, 1, 3]].eq(0).all()


@pytest.mark.parametrize("model", HYBRIDS)
def test_three_of_four_published_layers_keep_a_state(model: str) -> None:
    config = parse_config(HYBRIDS[model])
    assert config.recurrent_layers == 3 * config.num_layers // 4
    assert config.kv_layers == config.num_layers // 4


def test_nine_of_ten_published_layers_are_of_mamba() -> None:
    small, micro, bamba = (
        parse_config(MAMBAS[name])
        for name in ("Granite 4.0 H Small", "Granite 4.0 Micro", "Bamba 9B v2")
    )
    assert (small.recurrent_layers, small.kv_layers, small.ropes) == (36, 4, ())
    assert (micro.recurrent_layers, micro.kv_layers) == (0, 40)
    assert (bamba.recurrent_layers, bamba.ropes[0].rotary_dim) == (29, 64)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"linear_num_value_heads": 5}, "5 value heads over 16 key heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim 1: "),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim 0: "),
        ({"linear_num_key_heads": "two"}, 'linear_num_key_heads has to be .* "two"'),
        ({"layer_types": ["linear_attention"] * 24}, "no layer attends"),
        ({"layer_types": ["sliding_attention"] * 24}, "layer_types sliding_attention"),
        ({"attn_output_gate": False}, "attn_output_gate False"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
    ],
)
def test_configs_that_cannot_be_are_refused(changes: dict[str, object], text: str) -> None:
    text_part = HYBRIDS["Qwen3.5 0.8B"]["text_config"]
    with pytest.raises(UnusableCheckpoint, match=text):
        parse_config(text_part | changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"mamba_n_heads": 127},
            "mamba_n_heads 127 of mamba_d_head 64 are not mamba_expand 2",
        ),
        ({"mamba_d_head": "wide"}, "mamba_d_head has to be a number, and is 'wide'"),
        ({"mamba_n_groups": 3}, "mamba_n_heads 128 over mamba_n_groups 3"),
        ({"mamba_n_groups": 0}, "mamba_n_groups 0: "),
        ({"mamba_n_groups": -1}, "mamba_n_groups -1: "),
        ({"mamba_d_state": 0}, "mamba_d_state 0: "),
        ({"mamba_d_conv": 1}, "mamba_d_conv 1: "),
        ({"mamba_expand": "two"}, 'mamba_expand has to be .* "two"'),
        ({"mamba_n_heads": 0, "mamba_d_head": "auto"}, "mamba_n_heads 0"),
        ({"mamba_n_heads": None}, "mamba_n_heads has to be a number, and is None"),
        ({"mamba_d_state": None}, "mamba_d_state null: Expected"),
        ({"mamba_proj_bias": "no"}, "mamba_proj_bias has to be true or false, and is 'no'"),
        ({"layer_types": 5}, "layer_types has to be a list, and is 5"),
        ({"time_step_limit": [0.001, 0.1]}, r"time_step_limit \[0.001, 0.1\] is not"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"layer_types": ["mamba"] * 40}, "no layer attends"),
        ({"layer_types": None}, "no layer attends"),
        ({"layer_types": ["sliding_attention"] * 40}, "layer_types sliding_attention"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type alibi"),
        ({"shared_intermediate_size": 0}, "shared_intermediate_size 0: "),
    ],
)
def test_granites_that_cannot_be_are_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(UnusableCheckpoint, match=text):
        parse_config(MAMBAS["Granite 4.0 H Small"] | changes)


def test_bambas_rotate_half_of_each_head() -> None:
    with pytest.raises(UnusableCheckpoint, match=r"_emb 128 is not half of .* 4096 .* 32$"):
        parse_config(MAMBAS["Bamba 9B v2"] | {"attn_rotary_emb": 128})


def test_stacked_experts_of_eight_bits_without_blocks_are_refused(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    make_checkpoint(plain, "granitemoehybrid")
    pack(plain, packed, "float-quantized")
    tensors, at = load_file(packed / WEIGHTS), "model.layers.2.block_sparse_moe.input_linear"
    weight = tensors[f"{at}.weight"]
    tensors[f"{at}.weight"] = weight.to(torch.float8_e4m3fn)
    tensors[f"{at}.weight_scale"] = torch.ones(*weight.shape[:2], 1)
    save_file(tensors, packed / WEIGHTS, {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match=r"too many, .*input_linear\.weight_scale"):
        load(packed, cpu_kernels="torch")
