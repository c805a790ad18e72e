"""The models whose shapes are measured, by their published configs; weights are random."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.kernels.recurrent import RecurrentShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Dimensions named as in config.json, and what is asked of it.

    `num_experts` 0: its MLPs are dense. `delta`, `mamba` and `convolution`: those of models
    whose other layers have a state. `batches` are of decode steps, `context` tokens of KV
    each; `prefill` is the tokens of a prompt, `few` those of short ones, `cached` those that
    short chunks are behind.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float = 500000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 32768
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    quantization: str | None = None
    dtype: torch.dtype = torch.bfloat16
    delta: RecurrentShape | None = None
    mamba: RecurrentShape | None = None
    convolution: RecurrentShape | None = None
    block_size: int = 16
    batches: tuple[int, ...] = (1, 8, 64)
    context: int = 2048
    prefill: int = 8192
    few: tuple[int, ...] = (32, 256)
    cached: int = 32768
    handed_over: int = 2000

    @property
    def config(self) -> dict[str, Any]:
        """What its config.json says."""
        said = {name: getattr(self, name) for name in _SAID} | {
            "hidden_act": "silu",
            "torch_dtype": str(self.dtype).removeprefix("torch."),
            "eos_token_id": 0,
        }
        if not self.num_experts:
            return said | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        return said | {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.num_experts_per_tok,
            "moe_intermediate_size": self.moe_intermediate_size,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }

    @property
    def kv_bytes(self) -> int:
        """Of one token, in all layers."""
        row = 2 * self.num_key_value_heads * self.head_dim
        return self.num_hidden_layers * row * self.dtype.itemsize


_SAID = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rope_theta",
    "rms_norm_eps",
    "tie_word_embeddings",
    "max_position_embeddings",
)

LLAMA = Shape(
    name="8b",  # Llama-3.1-8B
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128256,
)
QWEN = Shape(
    name="30b-a3b",  # Qwen3-30B-A3B
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=48,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=151936,
    rope_theta=1000000.0,
    rms_norm_eps=1e-6,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    delta=RecurrentShape(16, 32, 128, 128, 3),  # Qwen3-Next-80B-A3B's
    mamba=RecurrentShape(8, 64, 128, 64, 3),  # Nemotron-3-Nano-30B-A3B's
    convolution=RecurrentShape(2048, 2048, 0, 1, 2),  # LFM2-8B-A1B's
)
TINY = Shape(
    name="tiny",
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=160,
    max_position_embeddings=256,
    batches=(1, 3),
    context=40,
    prefill=24,
    few=(6,),
    cached=1040,
    handed_over=40,
)
TINY_EXPERTS = replace(
    TINY,
    name="tiny-experts",
    delta=RecurrentShape(1, 2, 16, 16, 3),
    mamba=RecurrentShape(1, 2, 16, 32, 3),
    convolution=RecurrentShape(48, 48, 0, 1, 2),
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
)
SHAPES = {
    shape.name: shape
    for shape in (
        LLAMA,
        replace(LLAMA, name="8b-fp8", quantization="fp8"),
        QWEN,
        TINY,
        replace(TINY, name="tiny-fp8", quantization="fp8"),
        TINY_EXPERTS,
    )
}
OF_A_GPU = ("8b", "8b-fp8", "30b-a3b")
