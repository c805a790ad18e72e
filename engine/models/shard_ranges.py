"""Which rows and columns of each tensor a rank reads, by the last two words of its name."""

from collections.abc import Callable, Sequence

from engine.checkpoints.packing import ROWS, Axis, axes_of
from engine.models.config import ModelConfig
from engine.models.expert_config import DeltaConfig
from engine.sharding.shard import Shard

BACK = ("o_proj", "down_proj", "out_proj")
BY_HEAD = ("in_proj_z", "in_proj_a", "in_proj_b", "in_proj_qkvz", "in_proj_ba")
# to the sum of all ranks, by one of them
ADDED = tuple(f"{name}.bias" for name in (*BACK, "fc2_latent_proj"))
Ranges = Callable[[int], Sequence[range]]
"""The ranges of a dimension that this rank reads, given its length."""


def rules_of(config: ModelConfig, shard: Shard) -> dict[str, tuple[Axis, Ranges]]:
    """By the last two words of a tensor's name: the axis that is split, and our ranges."""
    ours, kv = even(shard), _kv_rows(config, shard)
    outputs: dict[str, Ranges] = {
        "q_proj": ours,
        "q_b_proj": ours,
        "kv_b_proj": ours,
        "k_proj": kv,
        "v_proj": kv,
        "qkv_proj": _fused_rows(config, shard),
        "gate_proj": ours,
        "up_proj": ours,
        "gate_up_proj": _both_halves(shard),
        "lm_head": ours,
    }
    rules: dict[str, tuple[Axis, Ranges]] = {"self_attn.sinks": (ROWS, ours)}
    if config.delta is not None:
        channels = _channels(config.delta, shard)
        outputs |= {"in_proj_qkv": channels, **dict.fromkeys(BY_HEAD, ours)}
        rules["conv1d.weight"] = (ROWS, channels)
        rules |= {f"linear_attn.{name}": (ROWS, ours) for name in ("A_log", "dt_bias")}
    for end, axes in axes_of(config.packing).items():
        if axes.outputs is not None:
            rules |= {f"{name}.{end}": (axes.outputs, part) for name, part in outputs.items()}
        if axes.inputs is not None:
            rules |= {f"{name}.{end}": (axes.inputs, ours) for name in BACK}
    if config.qk_norm == "all":
        rules |= {"q_norm.weight": (ROWS, ours), "k_norm.weight": (ROWS, kv)}
    return rules


def even(shard: Shard) -> Ranges:
    """Equal parts."""
    return lambda size: [shard.part(size)]


def _both_halves(shard: Shard) -> Ranges:
    """Our ranges of a tensor that has gates, then ups."""

    def ranges(size: int) -> list[range]:
        ours = shard.part(size // 2)
        return [ours, range(size // 2 + ours.start, size // 2 + ours.stop)]

    return ranges


def _kv_rows(config: ModelConfig, shard: Shard) -> Ranges:
    heads = shard.heads(config.num_kv_heads)

    def ranges(size: int) -> list[range]:
        each = size // config.num_kv_heads
        return [range(heads.start * each, heads.stop * each)]

    return ranges


def _fused_rows(config: ModelConfig, shard: Shard) -> Ranges:
    """Our ranges of a tensor that has queries, then keys, then values."""
    kv_heads, heads = config.num_kv_heads, config.num_heads
    ours, kv_ours = shard.part(heads), shard.heads(kv_heads)

    def ranges(size: int) -> list[range]:
        each = size // (heads + 2 * kv_heads)
        firsts = (0, ours), (heads, kv_ours), (heads + kv_heads, kv_ours)
        return [range((at + some.start) * each, (at + some.stop) * each) for at, some in firsts]

    return ranges


def _channels(delta: DeltaConfig, shard: Shard) -> Ranges:
    """Our ranges of the channels of a delta net: queries, then keys, then values."""
    keys, values = delta.key_heads * delta.key_width, delta.value_heads * delta.value_width
    firsts = (0, keys), (keys, keys), (2 * keys, values)

    def ranges(size: int) -> list[range]:
        del size  # a tensor of another is refused when it is read
        parts = ((at, shard.part(count)) for at, count in firsts)
        return [range(at + part.start, at + part.stop) for at, part in parts]

    return ranges
