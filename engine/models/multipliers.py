"""Multipliers that configs have for products, as factors of the weights (Falcon-H1).

    queries, keys, values   product(`attention_in` x)
    attention's output      `attention_out` product(..)
    a Mamba-2 layer         `ssm` product(`ssm_in` x), and `ssm_out` product(..)
    an MLP                  gates by the first of `mlp`, the output by the second

A multiplier of inputs leaves the bias as it is.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.expert_config import MambaConfig, Multipliers
from engine.models.factors import Factor, Factors, Number


def product_factors(config: ModelConfig) -> Factors:
    """Of all layers of a model, or of one rank's part of it, whose config this is."""
    if (all_of_them := config.multipliers) is None:
        return {}
    of_a_layer = dict(_of_a_layer(config, all_of_them))
    return {
        f"model.layers.{index}.{name}": factor
        for index in range(config.num_layers)
        for name, factor in of_a_layer.items()
    }


def _of_a_layer(config: ModelConfig, given: Multipliers) -> Iterator[tuple[str, Factor]]:
    for name in ("q_proj", "k_proj", "v_proj"):
        yield f"self_attn.{name}", Factor(given.attention_in_multiplier, 1.0)
    yield "self_attn.o_proj", _of_outputs(given.attention_out_multiplier)
    if config.mamba is not None:
        inward = _of_parts(config.mamba, given)
        yield "mamba.in_proj", Factor(inward * given.ssm_in_multiplier, inward)
        yield "mamba.out_proj", _of_outputs(given.ssm_out_multiplier)
    gates, output = given.mlp_multipliers
    yield f"{config.mlp_names.block}.gate_proj", _of_outputs(gates)
    yield f"{config.mlp_names.block}.down_proj", _of_outputs(output)


def _of_outputs(number: Number) -> Factor:
    return Factor(number, number)


def _of_parts(mamba: MambaConfig, given: Multipliers) -> Tensor:
    """Of each output of a Mamba-2 layer's first product, as a checkpoint has them: of gates,
    values, keys, queries and rates.
    """
    values = mamba.value_heads * mamba.value_width
    keys = mamba.key_heads * mamba.key_width
    widths = torch.tensor([values, values, keys, keys, mamba.value_heads])
    return torch.tensor(given.ssm_multipliers).repeat_interleave(widths)
