"""Which rows and columns of each tensor a rank reads, by the last words of its name."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, product

from engine.checkpoints.packing import ROWS, Axis, axes_of
from engine.models.config import ModelConfig
from engine.models.expert_config import ConvolutionConfig, DeltaConfig, RecurrentConfig
from engine.sharding.shard import Shard

BACK = ("o_proj", "down_proj", "out_proj", "feed_forward.w2", "shared_mlp.output_linear")
BY_HEAD = ("in_proj_z", "in_proj_a", "in_proj_b", "in_proj_qkvz", "in_proj_ba")
# to the sum of all ranks, by one of them
ADDED = tuple(f"{name}.bias" for name in (*BACK, "fc2_latent_proj"))
Ranges = Callable[[int], Sequence[range]]
"""The ranges of a dimension that this rank reads, given its length."""
Rule = tuple[Axis, Ranges]


def rules_of(config: ModelConfig, shard: Shard) -> dict[str, Rule]:
    """By the last words of a tensor's name (`of_name`): the axis that is split, our ranges."""
    ours, kv = even(shard), _kv_rows(config.num_kv_heads, shard)
    outputs: dict[str, Ranges] = {
        "q_proj": ours,
        "q_b_proj": ours,
        "kv_b_proj": ours,
        "k_proj": kv,
        "v_proj": kv,
        "qkv_proj": _fused_rows(config, shard),
        "gate_proj": ours,
        "up_proj": ours,
        "feed_forward.w1": ours,
        "feed_forward.w3": ours,
        "gate_up_proj": _both_halves(shard),
        "shared_mlp.input_linear": _both_halves(shard),
        "lm_head": ours,
        **_of_global_layers(config, shard),
    }
    rules: dict[str, Rule] = {"self_attn.sinks": (ROWS, ours)}
    if config.recurrence is not None:
        products, rows = _recurrent(config.recurrence, shard)
        outputs |= products
        rules |= {name: (ROWS, part) for name, part in rows.items()}
    for end, axes in axes_of(config.packing).items():
        if axes.outputs is not None:
            rules |= {f"{name}.{end}": (axes.outputs, part) for name, part in outputs.items()}
        if axes.inputs is not None:
            rules |= {f"{name}.{end}": (axes.inputs, ours) for name in BACK}
    if config.qk_norm == "all":
        rules |= {"q_norm.weight": (ROWS, ours), "k_norm.weight": (ROWS, kv)}
    return rules


def _of_global_layers(config: ModelConfig, shard: Shard) -> dict[str, Ranges]:
    """Rows of keys and values of those layers whose heads differ from the others'."""
    if config.global_heads is None:
        return {}
    kv = _kv_rows(config.global_heads.num_kv_heads, shard)
    layers = [at for at, plan in enumerate(config.layers) if plan.global_heads]
    parts = product(layers, ("k_proj", "v_proj"))
    return {f"layers.{at}.self_attn.{part}": kv for at, part in parts}


def of_name(rules: Mapping[str, Rule], name: str) -> Rule | None:
    """What holds for a tensor: by as many of its name's last words as a rule has."""
    words = name.split(".")
    ends = (".".join(words[-count:]) for count in (5, 3, 2))
    return next((rules[end] for end in ends if end in rules), None)


def even(shard: Shard) -> Ranges:
    """Equal parts."""
    return lambda size: [shard.part(size)]


def _both_halves(shard: Shard) -> Ranges:
    """Our ranges of a tensor that has gates, then ups."""

    def ranges(size: int) -> list[range]:
        ours = shard.part(size // 2)
        return [ours, range(size // 2 + ours.start, size // 2 + ours.stop)]

    return ranges


def _kv_rows(kv_heads: int, shard: Shard) -> Ranges:
    heads = shard.heads(kv_heads)

    def ranges(size: int) -> list[range]:
        each = size // kv_heads
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


def _recurrent(config: RecurrentConfig, shard: Shard) -> tuple[dict[str, Ranges], ...]:
    """Products' outputs, and other rows, of layers that keep a state.

    Each key head stays with the value heads that share it, so queries, keys and values are
    shared out each by themselves.
    """
    ours, heads = even(shard), config.value_heads
    keys, values = config.key_heads * config.key_width, heads * config.value_width
    if isinstance(config, DeltaConfig):
        channels = _each(shard, keys, keys, values)
        outputs = {"in_proj_qkv": channels, **dict.fromkeys(BY_HEAD, ours)}
        rows = {f"linear_attn.{name}": ours for name in ("A_log", "dt_bias")}
        return outputs, {"conv1d.weight": channels, **rows}
    if isinstance(config, ConvolutionConfig):
        rows = {f"conv.conv.{name}": ours for name in ("weight", "bias")}
        return {"in_proj": _each(shard, values, values, values)}, rows
    channels = _each(shard, values, keys, keys)
    rows = {f"conv1d.{name}": channels for name in ("weight", "bias")}
    for block, name in product(("mamba", "mixer"), ("A_log", "D", "dt_bias", "norm.weight")):
        rows[f"{block}.{name}"] = ours
    return {"in_proj": _each(shard, values, values, keys, keys, heads)}, rows


def _each(shard: Shard, *sizes: int) -> Ranges:
    """Our ranges of a tensor of several parts, one behind the other, of which we have some."""
    firsts = accumulate(sizes, initial=0)
    parts = zip(firsts, map(shard.part, sizes), strict=False)
    ours = [range(first + part.start, first + part.stop) for first, part in parts]
    return lambda _: ours  # a tensor of another size is refused when it is read
