"""A rank's part of a model: its own config, and which part of each tensor it reads.

Heads, the intermediate columns of each MLP, whole experts, and the rows of the vocabulary are
split over ranks (Shoeybi et al. 2019, "Megatron-LM", section 3). Weights that lead to them are
split by rows, weights that lead back by columns, and the ranks' outputs are summed by an
all-reduce. Each rank reads only its slices from the files.

The embedding is whole on every rank: rows are looked up in it, so it costs memory but no
bandwidth.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from msgspec.structs import replace
from torch import Tensor

from engine.checkpoints.packing import BLOCK, ROWS, Axis, axes_of
from engine.checkpoints.store import File, Tensors
from engine.errors import UnusableAdapter, UnusableCheckpoint
from engine.kernels.weights import joined
from engine.lora.adapter import LoraAdapter, LoraFactors
from engine.models.config import ModelConfig
from engine.models.expert_config import (
    ConvolutionConfig,
    DeltaConfig,
    LatentConfig,
    MambaConfig,
)
from engine.models.shard_ranges import ADDED, Ranges, even, of_name, rules_of
from engine.sharding.shard import Shard, divides_evenly

FLAG = "--tensor-parallel-size"
EXPERT = re.compile(r"\.experts\.(\d+)\.")
STACKED = re.compile(
    r"\.experts\.(gate_up_proj|up_proj|down_proj)(_bias|_blocks|_scales|_scale_inv)?$"
    r"|\.block_sparse_moe\.(input|output)_linear\.weight$"
)
State = TypeVar("State", DeltaConfig | None, MambaConfig | None, ConvolutionConfig | None)


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A checkpoint file as one rank sees it: slices of its tensors along `axis`."""

    file: File
    axis: Axis
    ranges: Ranges

    def get_tensor(self, name: str) -> Tensor:
        """This rank's slice, reading no more than necessary; a block's scale is for all."""
        whole, (dim, unit) = self.file.get_slice(name), self.axis
        before, count = (slice(None),) * dim, whole.get_shape()[dim]
        if (unit, count) == (BLOCK, 1) and name.endswith(("_scale_inv", "_scale")):
            return self.file.get_tensor(name)
        wanted = self.ranges(count * unit)
        parts = [whole[(*before, slice(one.start // unit, one.stop // unit))] for one in wanted]
        return parts[0] if len(parts) == 1 else joined(parts, dim)


@dataclass(frozen=True, slots=True)
class ZeroTensors:
    """A file whose tensor (a bias behind an all-reduce) rank 0 alone adds: zeros here."""

    file: File

    def get_tensor(self, name: str) -> Tensor:
        """Zeros in the tensor's shape."""
        return torch.zeros_like(self.file.get_tensor(name))


def check_divisible(config: ModelConfig, size: int) -> None:
    """Raises UnusableCheckpoint, naming the size that `size` ranks cannot divide."""
    told = f"{FLAG} {size}"
    if config.latent is None and not divides_evenly(config.num_kv_heads, size):
        raise UnusableCheckpoint(f"{told}: {config.num_kv_heads} KV heads do not share out")
    if (other := config.global_heads) and not divides_evenly(other.num_kv_heads, size):
        heads = f"{other.num_kv_heads} KV heads of global layers"
        raise UnusableCheckpoint(f"{told}: {heads} do not share out")
    for name, count in _shared_out(config).items():
        if count % size:
            raise UnusableCheckpoint(f"{told}: {count} {name} do not share out")
    axes = axes_of(config.packing).values()
    units = (max(axis.unit for one in axes if (axis := one[side])) for side in (0, 1))
    check_groups(config, size, *units)


def _shared_out(config: ModelConfig) -> dict[str, int]:
    """What ranks divide evenly, by what it is called, but for KV heads."""
    sizes, experts = {"heads": config.num_heads}, config.experts
    if config.dense_layers:
        sizes["columns of the MLP (intermediate_size)"] = config.intermediate_size
    if experts is not None:
        sizes["experts"] = experts.routing.num_experts
        if experts.shared is not None:
            sizes["columns of the shared expert"] = experts.shared.width
    if config.recurrence is not None and config.recurrent_layers:
        shared = "key heads of layers with a state"
        shared = "channels of convolutions" if config.convolution else shared
        sizes[shared] = config.recurrence.key_heads
    return sizes


def check_groups(config: ModelConfig, size: int, outputs: int, inputs: int) -> None:
    """Check that ranks do not split groups of `outputs` or `inputs`, which share a scale.

    Or a packed word. Raises UnusableCheckpoint. `check_divisible` is called first.
    """
    part, latent, both = (
        shard_config(config, Shard(0, size)),
        config.latent,
        max(outputs, inputs),
    )
    queries = answers = part.num_heads * config.head_dim
    keys = _key_rows(part)
    if latent is not None:
        queries, made = (part.num_heads * one for one in _latent_rows(config, latent))
        keys, answers = {"keys": made}, part.num_heads * latent.value_dim
    wanted = [("queries", queries, outputs)]
    wanted += [(name, rows, outputs) for name, rows in keys.items()]
    wanted.append(("attention's answers", answers, inputs))
    if part.dense_layers:
        wanted.append(("columns of the MLP", part.intermediate_size, both))
    if part.experts is not None and part.experts.shared is not None:
        wanted.append(("columns of the shared expert", part.experts.shared.width, both))
    if (state := part.recurrence) is not None and part.recurrent_layers:
        values = state.value_heads * state.value_width
        wanted.append(("states' keys", state.key_heads * state.key_width, outputs))
        wanted.append(("states' values", values, both))
        rates = state.value_heads * (1 + (part.delta is not None and part.delta.by_key_head))
        if part.mamba or outputs != BLOCK or rates * size > outputs:  # else they share a scale
            wanted.append(("states' rates", rates, outputs))
    for name, count, unit in wanted:
        if count % unit:
            told = f"{FLAG} {size}: {count} {name} of each rank"
            raise UnusableCheckpoint(f"{told} are not in groups of {unit}")


def _key_rows(part: ModelConfig) -> dict[str, int]:
    """Rows of one rank's keys, in each kind of layers."""
    rows = {"keys": part.num_kv_heads * part.head_dim}
    if (other := part.global_heads) is not None:
        rows["keys of global layers"] = other.num_kv_heads * other.head_dim
    return rows


def _latent_rows(config: ModelConfig, latent: LatentConfig) -> tuple[int, int]:
    """Rows of one head's queries, and of its keys and values, that are made from latents."""
    return latent.plain_dim + config.head_dim, latent.plain_dim + latent.value_dim


def shard_config(config: ModelConfig, shard: Shard) -> ModelConfig:
    """The config of one rank's part of the model."""
    each, experts = shard.size, config.experts
    if experts is not None and experts.shared is not None:
        shared = replace(experts.shared, width=experts.shared.width // each)
        experts = replace(experts, shared=shared)
    if (wide := config.global_heads) is not None:
        wide = replace(wide, num_kv_heads=max(1, wide.num_kv_heads // each))
    return replace(
        config,
        num_heads=config.num_heads // each,
        global_heads=wide,
        num_kv_heads=max(1, config.num_kv_heads // each),
        intermediate_size=max(1, config.intermediate_size // each),
        experts=experts,
        delta=_part_of_state(config.delta, each),
        mamba=_part_of_state(config.mamba, each),
        convolution=_part_of_state(config.convolution, each),
    )


def _part_of_state(config: State, ranks: int) -> State:
    if config is None:
        return config
    heads, shared = config.value_heads // ranks, max(1, config.key_heads // ranks)
    return replace(config, value_heads=heads, key_heads=shared)


def shard_tensors(
    files: Mapping[str, File], config: ModelConfig, shard: Shard
) -> dict[str, Tensors]:
    """This rank's slices of each file's tensors; `config` is the whole model's.

    Other ranks' experts are left out.
    """
    found, rules = dict[str, Tensors](), rules_of(config, shard)
    ours = shard.part(config.experts.routing.num_experts) if config.experts else range(0)
    for name, file in files.items():
        if (expert := EXPERT.search(name)) and int(expert[1]) not in ours:
            continue
        rule, found[name] = of_name(rules, name), file
        if STACKED.search(name):
            found[name] = TensorSlice(file, ROWS, even(shard))
        elif not expert and rule is not None:
            found[name] = TensorSlice(file, *rule)
        elif not expert and name.endswith(ADDED) and shard.rank > 0:
            found[name] = ZeroTensors(file)
    return found


def shard_adapter(adapter: LoraAdapter, config: ModelConfig, shard: Shard) -> LoraAdapter:
    """This rank's part of an adapter; `config` is the whole model's.

    B is split where the layer's outputs are, and A where its inputs are; the ranks' results are
    then added up with the layer's own.
    """
    plain, factors = replace(config, packing=None), dict[str, LoraFactors]()
    every = [rules_of(plain, Shard(rank, shard.size)) for rank in range(shard.size)]
    for layer, one in adapter.factors.items():
        found = [rule for rules in every if (rule := of_name(rules, f"{layer}.weight"))]
        factors[layer] = one
        if found:
            axis, ranges = found[shard.rank]
            size = (one.up if axis.dim == 0 else one.down).shape[axis.dim]
            if not _cover([one for _, every_range in found for one in every_range(size)], size):
                raise UnusableAdapter(
                    f"adapter {adapter.name}: {layer} has {size} "
                    f"{'inputs' if axis.dim else 'outputs'}, which {shard.size} ranks do not "
                    "share out"
                )
            factors[layer] = _shard_factors(one, axis.dim, ranges(size))
    return LoraAdapter(adapter.name, factors, adapter.digest)


def _cover(ranges: Sequence[range], size: int) -> bool:
    """Whether each of `size` rows is in one of the ranges."""
    end = 0
    for one in sorted(ranges, key=lambda one: one.start):
        if one.start > end:
            return False
        end = max(end, one.stop)
    return end == size


def _shard_factors(factors: LoraFactors, dim: int, wanted: Sequence[range]) -> LoraFactors:
    """Ranges of B's outputs (`dim` 0), or of A's inputs."""
    whole = factors.down if dim else factors.up
    part = torch.cat([whole.narrow(dim, one.start, len(one)) for one in wanted], dim)
    if dim:
        return LoraFactors(part, factors.up, factors.scale)
    return LoraFactors(factors.down, part, factors.scale)
