"""The bytes and operations that a whole step needs, counted from a model's shape."""

from dataclasses import replace

from bench.gpu.shapes import Shape
from engine.kernels.floor import Floor, Unit

NARROW_BYTES = {"fp8": 1.0}


def layer_weights(shape: Shape, tokens: int, experts: float | None = None) -> int:
    """Weights of all layers that a batch of `tokens` tokens uses.

    `experts` is the number of those chosen in a layer, on average; None: what is expected if
    all are equally likely.
    """
    rows = 2 * shape.num_attention_heads + 2 * shape.num_key_value_heads
    attention = rows * shape.head_dim * shape.hidden_size
    mlp = _mlp_weights(shape, _expected(shape, tokens) if experts is None else experts)
    return round(shape.num_hidden_layers * (attention + mlp))


def layer_bytes(shape: Shape) -> int:
    """Bytes of one layer's weights with all experts, in a checkpoint of the model's dtype."""
    every = replace(shape, num_hidden_layers=1, num_experts_per_tok=shape.num_experts)
    return layer_weights(every, 1) * shape.dtype.itemsize


def step_floor(shape: Shape, sequences: int, experts: float | None = None) -> Floor:
    """A decode step: every weight and all KV once, and each sequence's operations.

    `experts`: see `layer_weights`.
    """
    head = shape.hidden_size * shape.vocab_size
    read = (layer_weights(shape, sequences, experts) + head) * _bytes(shape)
    cached = sequences * shape.context * shape.kv_bytes
    attended = 4 * shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim
    operations = 2 * (_multiplied(shape) + head) + attended * shape.context
    return Floor(round(read) + cached, sequences * operations, _unit(shape))


def prompt_floor(shape: Shape, tokens: int, experts: float | None = None) -> Floor:
    """A prompt in one piece: each token attends to half of them on average.

    `experts`: see `layer_weights`.
    """
    head = shape.hidden_size * shape.vocab_size
    read = (layer_weights(shape, tokens, experts) + head) * _bytes(shape)
    attended = 2 * shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim
    operations = 2 * _multiplied(shape) * tokens + attended * tokens * tokens + 2 * head
    return Floor(round(read) + tokens * shape.kv_bytes, operations, _unit(shape))


def handover_floor(shape: Shape, tokens: int) -> Floor:
    """On one device: all KV is read once and written once."""
    blocks = -(-tokens // shape.block_size)
    return Floor(2 * blocks * shape.block_size * shape.kv_bytes)


def _mlp_weights(shape: Shape, experts: float) -> float:
    """Weights of one layer's MLP of which a batch uses so many experts."""
    if not shape.num_experts:
        return 3 * shape.hidden_size * shape.intermediate_size
    router = shape.hidden_size * shape.num_experts
    return router + experts * 3 * shape.hidden_size * shape.moe_intermediate_size


def _expected(shape: Shape, tokens: int) -> float:
    """The number of experts that are chosen if all are equally likely; 0 without any."""
    if not shape.num_experts:
        return 0.0
    missed = (1 - shape.num_experts_per_tok / shape.num_experts) ** tokens
    return shape.num_experts * (1 - missed)


def _multiplied(shape: Shape) -> int:
    """Weights of all layers that each token is multiplied with."""
    return layer_weights(shape, 1)


def _bytes(shape: Shape) -> float:
    """Bytes of a stored weight."""
    return NARROW_BYTES.get(shape.quantization or "", shape.dtype.itemsize)


def _unit(shape: Shape) -> Unit:
    return "float8" if shape.quantization == "fp8" else "bfloat16"
