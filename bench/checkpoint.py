"""Writes a checkpoint of a random Llama in the Hugging Face layout, for benchmarks."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

INITIALIZER_RANGE = 0.02
END = "<end>"


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions, named as in config.json."""

    hidden_size: int = 256
    intermediate_size: int = 688
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 64
    vocab_size: int = 8000
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = False


def write_checkpoint(folder: Path, shape: Shape, *, dtype: torch.dtype, seed: int = 0) -> None:
    """Write config, weights, and a tokenizer with one word for each token."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": 0,
        **asdict(shape),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: (torch.randn(size, generator=generator) * INITIALIZER_RANGE).to(dtype)
        for name, size in _sizes(shape)
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder, shape.vocab_size)


def _sizes(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    for layer in range(shape.num_hidden_layers):
        base = f"model.layers.{layer}"
        yield f"{base}.input_layernorm.weight", (hidden,)
        yield f"{base}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{base}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{base}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{base}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{base}.post_attention_layernorm.weight", (hidden,)
        yield f"{base}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{base}.mlp.up_proj.weight", (inner, hidden)
        yield f"{base}.mlp.down_proj.weight", (hidden, inner)
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    if not shape.tie_word_embeddings:
        yield "lm_head.weight", (shape.vocab_size, hidden)


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    words = {END: 0} | {f"w{index}": index for index in range(1, vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
