"""Writes random LoRA adapters of a Llama's shape, as PEFT saves them, for benchmarks."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

import bench.checkpoint
import bench.gpu.shapes

RANK, ALPHA, DEVIATION = 16, 16, 0.02
Shape = bench.checkpoint.Shape | bench.gpu.shapes.Shape
"""Of a Llama."""


def write_adapters(
    folder: Path, shape: Shape, count: int, dtype: torch.dtype
) -> tuple[str, ...]:
    """Write `count` adapters of rank RANK, of all linear layers; returns --lora-modules."""
    names = [f"adapter-{index}" for index in range(count)]
    for seed, name in enumerate(names):
        (ours := folder / name).mkdir()
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}
        (ours / "adapter_config.json").write_text(json.dumps(config))
        generator, factors = torch.Generator().manual_seed(seed), dict[str, torch.Tensor]()
        for layer, (outputs, inputs) in layers_of(shape).items():
            for end, size in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                factor = torch.randn(size, generator=generator) * DEVIATION
                factors[f"base_model.model.{layer}.lora_{end}.weight"] = factor.to(dtype)
        save_file(factors, ours / "adapter_model.safetensors")
    return tuple(f"{name}={folder / name}" for name in names)


def layers_of(shape: Shape) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of every linear layer but the head, by name."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = (
        heads * shape.head_dim
        for heads in (shape.num_attention_heads, shape.num_key_value_heads)
    )
    of_one = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    return {
        f"model.layers.{layer}.{name}": sizes
        for layer in range(shape.num_hidden_layers)
        for name, sizes in of_one.items()
    }


def numbers_of(shape: Shape) -> int:
    """The numbers of one adapter."""
    return sum(RANK * sum(sizes) for sizes in layers_of(shape).values())
