"""What checkpoints call the tensors of a layer. Torch-free."""

import msgspec


class NormNames(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint's names for a layer's norms, before and after each part, and for the norm
    behind the last layer.
    """

    attention: str | None = "input_layernorm"
    attention_output: str | None = None
    mlp: str | None = "post_attention_layernorm"
    mlp_output: str | None = None
    last: str = "norm"


class AttentionNames(msgspec.Struct, frozen=True, kw_only=True):
    """Its names for attention's last product, and for the norms of queries and keys."""

    output: str = "o_proj"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"


class MlpNames(msgspec.Struct, frozen=True, kw_only=True):
    """Its names for a dense MLP and its products; gates and ups may be one."""

    block: str = "mlp"
    inward: tuple[str, ...] = ("gate_proj", "up_proj")
    outward: str = "down_proj"
