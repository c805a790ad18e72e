"""What an engine reports of the state that its model keeps beside KV. Torch-free."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateInfo:
    """A sequence's state, of each of `layers`: numbers in float32.

    For each value head [key_width, value_width], then the last inputs of a convolution,
    [taps, channels]: queries of all key heads, keys of all key heads, values of all value
    heads. Heads are the model's; each rank has equal shares, in order. In a rank's blocks
    layers are `layer_bytes` apart, as many as fit.
    """

    layers: int
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    taps: int
    layer_bytes: int
