"""The floor is counted on what the checkpoint really has."""

from pathlib import Path

import torch
from safetensors import safe_open

from bench.checkpoint import Shape, write_checkpoint
from bench.engine import Work

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
    work = Work(SHAPE)
    assert work.layer_weights == sum(n for name, n in sizes.items() if "proj" in name)
    assert work.head_weights == sizes["lm_head.weight"]


def test_a_prompt_costs_two_operations_a_weight_and_attention_the_square() -> None:
    work = Work(SHAPE)
    pair = 4 * SHAPE.num_hidden_layers * SHAPE.num_attention_heads * SHAPE.head_dim
    causal = pair / 2  # half of all pairs of tokens see each other
    assert work.prompt_flop(10) == (
        2 * 10 * work.layer_weights + 10 * 10 * causal + 2 * work.head_weights
    )


def test_a_step_reads_weights_once_and_each_sequences_kv() -> None:
    work = Work(SHAPE)
    kv = 2 * SHAPE.num_hidden_layers * SHAPE.num_key_value_heads * SHAPE.head_dim
    weights = work.layer_weights + work.head_weights
    assert work.step_bytes(3, 5) == 2 * (weights + 3 * 5 * kv)
