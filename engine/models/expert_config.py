"""Settings of experts and of other kinds of attention, and their tensors' names. Torch-free."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.models.routing import Count, Routing


class ClampedSwiglu(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of gpt-oss's activation (clamped_swiglu in engine/models/experts.py)."""

    alpha: float = 1.702
    limit: float = 7.0


class SharedExpertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An expert that gets every token; `gate` names the tensor that weights it, if any.

    It is `within` the experts' block, or beside it.
    """

    name: str
    width: Count
    gate: str | None = None
    within: bool = True


class ExpertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The experts of one layer, the same in all layers that have any.

    In a checkpoint they are under `block` of their layer: the router as `router`, each expert
    as `experts.N` with its gate, up and down as `parts`. `correction` names the tensor that
    balances the load of experts. If all experts are stacked in one tensor, its layout is
    transformers': [experts, outputs, inputs], or, with `stacked_across`, [experts, inputs,
    outputs] with gates and ups alternating, or the same packed as MXFP4. `stacks` names the
    two tensors of a family that always has the first layout, under names of its own. With a
    `latent_width` they read and write so many numbers, which two products make of hidden states
    and back. They may be `beside` a dense MLP (engine/models/experts_beside.py).
    """

    routing: Routing
    width: Count
    block: str = "mlp"
    router: str = "gate"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router_bias: bool = False
    correction: str | None = None
    shared: SharedExpertConfig | None = None
    stacked_across: bool = False
    stacks: tuple[str, str] | None = None
    clamp: ClampedSwiglu | None = None
    latent_width: Count | None = None
    beside: bool = False


class LatentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of multi-head latent attention (engine/models/latent_attention.py).

    The rotated part of a head is as wide as the model's `head_dim`. `query_rank` is None if
    queries are not made through a latent.
    """

    rank: Count
    plain_dim: Count
    value_dim: Count
    query_rank: Count | None = None


class RecurrentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of layers that keep a state, whose convolution reads `kernel` tokens."""

    key_heads: Count
    value_heads: Count
    key_width: Count
    value_width: Count
    kernel: Annotated[int, Meta(ge=2, le=64)]

    def __post_init__(self) -> None:
        """Check that value heads can share key heads."""
        if self.value_heads % self.key_heads:
            heads = f"{self.value_heads} value heads over {self.key_heads} key heads"
            raise ValueError(f"{heads} of linear attention cannot be shared out")


class DeltaConfig(RecurrentConfig, frozen=True, kw_only=True):
    """Of gated delta nets (engine/models/delta_net.py).

    `by_key_head`: the checkpoint has what belongs to one key head together, in two tensors.
    """

    by_key_head: bool = False


class MambaConfig(RecurrentConfig, frozen=True, kw_only=True):
    """Of Mamba-2 layers (engine/models/mamba.py); biases of the convolution, and of the
    products before and behind it; whether what was read is normed.

    Queries and keys are what the paper calls C and B, and key heads its groups.
    """

    convolution_bias: bool = True
    bias: bool = False
    output_bias: bool = False
    norm: bool = True


class Multipliers(msgspec.Struct, frozen=True, kw_only=True):
    """What products' inputs or outputs are multiplied by (engine/models/multipliers.py).

    `ssm_multipliers` are of a Mamba-2 layer's gates, values, keys, queries and rates, and
    `mlp_multipliers` of an MLP's gates and of its output.
    """

    attention_in_multiplier: float
    attention_out_multiplier: float
    ssm_in_multiplier: float
    ssm_out_multiplier: float
    ssm_multipliers: tuple[float, float, float, float, float]
    mlp_multipliers: tuple[float, float]


class ConvolutionConfig(RecurrentConfig, frozen=True, kw_only=True):
    """Of gated short convolutions (engine/models/short_convolution.py), and whether it and the
    products around it have biases.

    Each channel counts as a head, which has no keys.
    """

    key_width: Literal[0] = 0
    value_width: Literal[1] = 1
    bias: bool = False
