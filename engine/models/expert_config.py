"""Settings of experts and of latent attention, and their tensors' names. Torch-free."""

import msgspec

from engine.models.routing import Count, Routing


class ClampedSwiglu(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of gpt-oss's activation (clamped_swiglu in engine/models/experts.py)."""

    alpha: float = 1.702
    limit: float = 7.0


class SharedExpertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An expert that every token is sent to; `gate` names the tensor that weighs it, if any."""

    name: str
    width: Count
    gate: str | None = None


class ExpertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The experts of one layer, the same in all layers that have any.

    In a checkpoint they are under `block` of their layer: the router as `router`, each expert
    as `experts.N` with its gate, up and down as `parts`. Where all are stacked in one tensor
    each, it is as transformers has it: [experts, outputs, inputs], or, `stacked_across`,
    [experts, inputs, outputs] with gates and ups alternating, or the same packed as MXFP4.
    """

    routing: Routing
    width: Count
    block: str = "mlp"
    router: str = "gate"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router_bias: bool = False
    correction: bool = False
    shared: SharedExpertConfig | None = None
    stacked_across: bool = False
    clamp: ClampedSwiglu | None = None


class LatentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of multi-head latent attention (engine/models/latent_attention.py).

    The part of a head that is rotated is as wide as the model's `head_dim`. `query_rank` is
    None where queries are made in one step.
    """

    rank: Count
    plain_dim: Count
    value_dim: Count
    query_rank: Count | None = None
