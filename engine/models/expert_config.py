"""Settings of experts and of other kinds of attention, and their tensors' names. Torch-free."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.models.routing import Count, Routing


class ClampedSwiglu(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of gpt-oss's activation (clamped_swiglu in engine/models/experts.py)."""

    alpha: float = 1.702
    limit: float = 7.0


class SharedExpertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An expert that gets every token; `gate` names the tensor that weights it, if any."""

    name: str
    width: Count
    gate: str | None = None


class ExpertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The experts of one layer, the same in all layers that have any.

    In a checkpoint they are under `block` of their layer: the router as `router`, each expert
    as `experts.N` with its gate, up and down as `parts`. `correction` names the tensor that
    balances the load of experts. If all experts are stacked in one tensor, its layout is
    transformers': [experts, outputs, inputs], or, with `stacked_across`, [experts, inputs,
    outputs] with gates and ups alternating, or the same packed as MXFP4.
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
    clamp: ClampedSwiglu | None = None


class LatentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of multi-head latent attention (engine/models/latent_attention.py).

    The rotated part of a head is as wide as the model's `head_dim`. `query_rank` is None if
    queries are not made through a latent.
    """

    rank: Count
    plain_dim: Count
    value_dim: Count
    query_rank: Count | None = None


class DeltaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of gated delta nets (engine/models/delta_net.py), whose convolution reads `kernel`
    tokens.

    `by_key_head`: the checkpoint has what belongs to one key head together, in two tensors.
    """

    key_heads: Count
    value_heads: Count
    key_width: Count
    value_width: Count
    kernel: Annotated[int, Meta(ge=2, le=64)]
    by_key_head: bool = False

    def __post_init__(self) -> None:
        """Check that value heads can share key heads."""
        if self.value_heads % self.key_heads:
            heads = f"{self.value_heads} value heads over {self.key_heads} key heads"
            raise ValueError(f"{heads} of linear attention cannot be shared out")
