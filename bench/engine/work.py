"""The operations and bytes that prompts and steps need, counted from a model's shape."""

from dataclasses import dataclass, replace

import torch

from bench.checkpoint import Shape
from engine.kernels.weights import GROUP

BYTES = torch.bfloat16.itemsize
LONGEST = 8192
SHAPES = {
    "tiny": replace(Shape(), max_position_embeddings=LONGEST),
    "0.5b": Shape(  # Qwen2.5-0.5B's dimensions
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=151936,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
    ),
    "1.5b": Shape(  # Qwen2.5-1.5B's
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        head_dim=128,
        vocab_size=151936,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
    ),
}
SCALE = 4 / GROUP  # bytes
WEIGHT_BYTES = {
    None: (BYTES, BYTES),
    "int8": (1, 1),
    "fp8": (1 + SCALE, 1 + SCALE),
    "int4": (1 / 2 + SCALE, BYTES),
}
"""Bytes of a layer's weight and of the head's, for each `--quantization`."""


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The work of a random Llama in bfloat16, or with weights of another size.

    `weight_bytes` are those of WEIGHT_BYTES.
    """

    shape: Shape
    weight_bytes: tuple[float, float] = (BYTES, BYTES)

    @property
    def layer_weights(self) -> int:
        """Weights of all layers together."""
        one = self.shape
        attention = (2 * one.num_attention_heads + 2 * one.num_key_value_heads) * one.head_dim
        return one.num_hidden_layers * one.hidden_size * (attention + 3 * one.intermediate_size)

    @property
    def head_weights(self) -> int:
        """Weights of the LM head."""
        return self.shape.hidden_size * self.shape.vocab_size

    def prompt_operations(self, tokens: int) -> int:
        """All layers for all tokens, attention to those before, and one row of logits."""
        heads = self.shape.num_hidden_layers * self.shape.num_attention_heads
        attention = 2 * heads * self.shape.head_dim * tokens * tokens
        return 2 * self.layer_weights * tokens + attention + 2 * self.head_weights

    def step_operations(self, sequences: int, tokens: int) -> int:
        """Every weight for each sequence, and its attention to all its tokens."""
        heads = self.shape.num_hidden_layers * self.shape.num_attention_heads
        weights = self.layer_weights + self.head_weights
        return sequences * (2 * weights + 4 * heads * self.shape.head_dim * tokens)

    def step_bytes(self, sequences: int, tokens: int) -> float:
        """Every weight once, and the KV of every sequence."""
        kv = 2 * self.shape.num_hidden_layers * self.shape.num_key_value_heads
        read = sequences * tokens * kv * self.shape.head_dim
        layers, head = self.weight_bytes
        return layers * self.layer_weights + head * self.head_weights + BYTES * read
