"""The floor is counted on what the checkpoint really has."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from bench.checkpoint import Shape, write_checkpoint
from bench.engine.ours import OurEngine
from bench.engine.rates import Rates
from bench.engine.work import WEIGHT_BYTES, ModelWork
from engine.settings import EngineConfig

SHAPE = Shape(
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    vocab_size=20,
)


def test_every_weight_of_a_product_is_counted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SHAPE, dtype=torch.bfloat16)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        sizes = {name: file.get_tensor(name).numel() for name in file.keys()}  # noqa: SIM118
    work = ModelWork(SHAPE)
    assert work.layer_weights == sum(n for name, n in sizes.items() if "proj" in name)
    assert work.head_weights == sizes["lm_head.weight"]


def test_a_prompt_costs_two_operations_a_weight_and_attention_the_square() -> None:
    work = ModelWork(SHAPE)
    pair = 4 * SHAPE.num_hidden_layers * SHAPE.num_attention_heads * SHAPE.head_dim
    causal = pair / 2  # half of all pairs of tokens see each other
    assert work.prompt_operations(10) == (
        2 * 10 * work.layer_weights + 10 * 10 * causal + 2 * work.head_weights
    )


def test_a_step_reads_weights_once_and_each_sequences_kv() -> None:
    work = ModelWork(SHAPE)
    kv = 2 * SHAPE.num_hidden_layers * SHAPE.num_key_value_heads * SHAPE.head_dim
    weights = work.layer_weights + work.head_weights
    assert work.step_bytes(3, 5) == 2 * (weights + 3 * 5 * kv)


@pytest.mark.parametrize(
    ("rounding", "layers", "head"),
    [("int8", 1, 1), ("fp8", 33 / 32, 33 / 32), ("int4", 17 / 32, 2)],
)
def test_weights_of_few_bits_are_fewer_bytes(rounding: str, layers: float, head: float) -> None:
    """128 of them share a scale of 4 bytes; with 4 bits the head is left whole."""
    work = ModelWork(SHAPE, WEIGHT_BYTES[rounding])
    assert work.step_bytes(0, 0) == layers * work.layer_weights + head * work.head_weights


def test_a_tied_head_is_not_in_the_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, replace(SHAPE, tie_word_embeddings=True), dtype=torch.bfloat16)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert "lm_head.weight" not in set(file.keys())


def test_the_shortest_time_is_that_of_what_takes_longer() -> None:
    rates = Rates(threads=1, operations=10.0, read_bytes=2.0)
    assert rates.seconds(operations=50, read_bytes=4) == 5
    assert rates.seconds(operations=10, read_bytes=8) == 4


def test_steps_are_measured_on_kv_that_was_never_computed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SHAPE, dtype=torch.bfloat16)
    settings = EngineConfig(model=str(tmp_path), threads=1)
    ours = OurEngine.load(settings, SHAPE, sequences=3, tokens=60)
    assert ours.prompt_s(50, runs=1) > 0
    assert ours.step_s(batch=3, context=40, steps=4) > 0
    ours.engine.step()  # checks that no block is lost
    assert ours.engine.load.free_blocks == ours.engine.load.total_blocks


def test_a_profile_names_what_a_step_does(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SHAPE, dtype=torch.bfloat16)
    settings = EngineConfig(model=str(tmp_path), threads=1, enforce_eager=True)
    ours = OurEngine.load(settings, SHAPE, sequences=2, tokens=60)
    assert "attend" in ours.profile(batch=2, context=50, steps=4, functions=500)


def test_a_ceiling_is_the_better_of_two_measurements() -> None:
    once, again = Rates(1, 10.0, 2.0), Rates(1, 8.0, 3.0)
    assert once.better(again) == again.better(once) == Rates(1, 10.0, 3.0)
