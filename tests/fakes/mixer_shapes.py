"""Sizes of small models whose layers have one part each; the rest is as in checkpoints.py."""

from typing import Any

from tests.fakes.mixture_shapes import EXPERTS

# blocks of 16 tokens hold one layer's state in float32, none in half precision
NEMOTRON_H = {
    **EXPERTS,
    "layers_block_type": [
        "linear_attention",
        "mlp",
        "full_attention",
        "moe",
        "linear_attention",
    ],
    "head_dim": 16,
    "n_routed_experts": 8,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 8,
    "time_step_min": 1e-30,  # to which only transformers would raise a step
}
MIXER_SHAPE: dict[str, dict[str, Any]] = {"nemotron_h": NEMOTRON_H}
