"""The bytes and operations that a whole step needs, counted from a model's shape."""

from dataclasses import replace

from bench.gpu.shapes import Shape
from engine.kernels.floor import Floor, Unit

NARROW_BYTES = {"fp8": 1.0}


def layer_weights(shape: Shape, tokens: int) -> int:
    """Weights of all layers that a batch of `tokens` tokens uses.

    For experts, the expected number of those chosen, if all are equally likely.
    """
    rows = 2 * shape.num_attention_heads + 2 * shape.num_key_value_heads
    attention = rows * shape.head_dim * shape.hidden_size
    return round(shape.num_hidden_layers * (attention + _mlp_weights(shape, tokens)))


def layer_bytes(shape: Shape) -> int:
    """Bytes of one layer's weights with all experts, in a checkpoint of the model's dtype."""
    every = replace(shape, num_hidden_layers=1, num_experts_per_tok=shape.num_experts)
    return layer_weights(every, 1) * shape.dtype.itemsize


def step_floor(shape: Shape, sequences: int) -> Floor:
    """A decode step: every weight and all KV once, and each sequence's operations."""
    head = shape.hidden_size * shape.vocab_size
    read = (layer_weights(shape, sequences) + head) * _bytes(shape)
    cached = sequences * shape.context * shape.kv_bytes
    attended = 4 * shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim
    operations = 2 * (_multiplied(shape) + head) + attended * shape.context
    return Floor(round(read) + cached, sequences * operations, _unit(shape))


def prompt_floor(shape: Shape, tokens: int) -> Floor:
    """A prompt in one piece: each token attends to half of them on average."""
    head = shape.hidden_size * shape.vocab_size
    read = (layer_weights(shape, tokens) + head) * _bytes(shape)
    attended = 2 * shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim
    operations = 2 * _multiplied(shape) * tokens + attended * tokens * tokens + 2 * head
    return Floor(round(read) + tokens * shape.kv_bytes, operations, _unit(shape))


def handover_floor(shape: Shape, tokens: int) -> Floor:
    """On one device: all KV is read once and written once."""
    blocks = -(-tokens // shape.block_size)
    return Floor(2 * blocks * shape.block_size * shape.kv_bytes)


def _mlp_weights(shape: Shape, tokens: int) -> float:
    """Weights of one layer's MLP that a batch uses."""
    if not shape.num_experts:
        return 3 * shape.hidden_size * shape.intermediate_size
    router = shape.hidden_size * shape.num_experts
    missed = (1 - shape.num_experts_per_tok / shape.num_experts) ** tokens
    touched = shape.num_experts * (1 - missed)
    return router + touched * 3 * shape.hidden_size * shape.moe_intermediate_size


def _multiplied(shape: Shape) -> int:
    """Weights of all layers that each token is multiplied with."""
    return layer_weights(shape, 1)


def _bytes(shape: Shape) -> float:
    """Bytes of a stored weight."""
    return NARROW_BYTES.get(shape.quantization or "", shape.dtype.itemsize)


def _unit(shape: Shape) -> Unit:
    return "float8" if shape.quantization == "fp8" else "bfloat16"
