"""What a model's config says of layers that keep a state, as kernels need it."""

from engine.kernels.recurrent import RecurrentShape
from engine.models.expert_config import RecurrentConfig


def recurrent_shape(config: RecurrentConfig) -> RecurrentShape:
    """The sizes that kernels need."""
    return RecurrentShape(
        config.key_heads,
        config.value_heads,
        config.key_width,
        config.value_width,
        config.kernel - 1,
    )
