"""EAGLE-3 heads of the tests' models, and what they draft by transformers' modules."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.checkpoints.checkpoint import WEIGHTS
from tests.fakes.checkpoints import VOCABULARY
from tests.fakes.draft_heads import in_turn

HIDDEN, INNER, HEADS, KV_HEADS, EPS = 32, 48, 4, 2, 1e-5
USUAL = 3  # layers that a head reads
SPREAD = 0.2
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,  # fewer than the model's, as is usual
    "rms_norm_eps": EPS,
    "hidden_act": "silu",
}


def make_eagle(
    folder: Path,
    *,
    words: int | None = None,
    layer: str = "midlayer",
    embeds: bool = False,
    head_dim: int = HIDDEN // HEADS,
    **config: object,
) -> Path:
    """A head that knows nothing, which draws from so many `words`; None: from all tokens.

    `layer` is what its layer is called; one that `embeds` has an embedding of its own.
    """
    generator = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> Tensor:
        return torch.empty(shape).normal_(0, SPREAD, generator=generator)

    told = config.get("eagle_aux_hidden_state_layer_ids")
    inputs = len(told) if isinstance(told, list) else USUAL
    queries, keys = HEADS * head_dim, KV_HEADS * head_dim
    weights = {
        "fc": drawn(HIDDEN, inputs * HIDDEN),
        f"{layer}.input_layernorm": 1 + drawn(HIDDEN),
        f"{layer}.hidden_norm": 1 + drawn(HIDDEN),
        f"{layer}.post_attention_layernorm": 1 + drawn(HIDDEN),
        f"{layer}.self_attn.q_proj": drawn(queries, 2 * HIDDEN),
        f"{layer}.self_attn.k_proj": drawn(keys, 2 * HIDDEN),
        f"{layer}.self_attn.v_proj": drawn(keys, 2 * HIDDEN),
        f"{layer}.self_attn.o_proj": drawn(HIDDEN, queries),
        f"{layer}.mlp.gate_proj": drawn(INNER, HIDDEN),
        f"{layer}.mlp.up_proj": drawn(INNER, HIDDEN),
        f"{layer}.mlp.down_proj": drawn(HIDDEN, INNER),
        "norm": 1 + drawn(HIDDEN),
        "lm_head": drawn(words or VOCABULARY, HIDDEN),
    }
    if embeds:
        weights["embed_tokens"] = drawn(VOCABULARY, HIDDEN)
    tensors = {f"{name}.weight": one for name, one in weights.items()}
    if words is not None:
        ids = torch.randperm(VOCABULARY, generator=generator)[:words].sort().values
        which = torch.zeros(VOCABULARY, dtype=torch.bool)
        which[ids] = True
        tensors |= {"d2t": ids - torch.arange(words), "t2d": which}
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    more = {} if words is None else {"draft_vocab_size": words}
    made = {**CONFIG, "head_dim": head_dim, **more, **config}
    (folder / "config.json").write_text(json.dumps(made))
    return folder


def eagled(head: Path, most: int = 4, **more: int) -> dict[str, str]:
    """The engine's settings for drafts of this head."""
    said = {"method": "eagle3", "model": str(head), "num_speculative_tokens": most, **more}
    return {"speculative_config": json.dumps(said)}


@dataclass
class EagleReference:
    """See ReferenceHead: the head's weights, under the names of its authors, and the model."""

    model: Any
    embedding: Tensor
    weights: dict[str, Tensor]
    attention: nn.Module
    turn: nn.Module
    inputs: Sequence[int]
    norm_before_residual: bool

    @classmethod
    def of(cls, made: Path, head: Path) -> "EagleReference":
        """Of a model and its head."""
        import transformers  # slow to load
        from transformers.models.llama import modeling_llama as llama

        model = transformers.AutoModelForCausalLM.from_pretrained(
            made, dtype=torch.float32, **EAGER
        )
        told = json.loads((head / "config.json").read_text())
        raw: dict[str, Any] = {name: told[name] for name in (*CONFIG, "head_dim")}
        config = transformers.LlamaConfig(**raw, **EAGER)
        weights = {
            name.replace("layers.0.", "midlayer."): one
            for name, one in load_file(head / WEIGHTS).items()
        }
        attention = llama.LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weight = weights[f"midlayer.self_attn.{name}.weight"]
            outputs, inputs = weight.shape
            linear = nn.Linear(inputs, outputs, bias=False)
            linear.weight.data.copy_(weight)
            setattr(attention, name, linear)
        layers = model.config.num_hidden_layers
        within = told.get("eagle_config", told)
        read = within.get("eagle_aux_hidden_state_layer_ids", (2, layers // 2, layers - 3))
        shared: Any = model.get_input_embeddings().weight
        embedding = weights.get("embed_tokens.weight", shared)
        turn = llama.LlamaRotaryEmbedding(config)
        before = bool(told.get("norm_before_residual"))
        return cls(model, embedding, weights, attention, turn, read, before)

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int], most: int) -> list[int]:
        """See ReferenceHead."""
        ids = torch.tensor([tokens[:-1]])
        streams = self.model(ids, output_hidden_states=True, use_cache=False).hidden_states
        told = torch.cat([streams[one][0] for one in self.inputs], 1)
        states = self._times("fc", told)
        return in_turn(tokens[1:], states, most, self._pass, self._likeliest)

    def _pass(self, read: Sequence[int], states: Tensor) -> Tensor:
        embedded = nn.functional.embedding(torch.tensor(read), self.embedding)
        normed = self._norm("midlayer.hidden_norm", states)
        both = torch.cat((self._norm("midlayer.input_layernorm", embedded), normed), 1)[None]
        later = torch.full((len(read),) * 2, float("-inf")).triu(1)[None, None]
        turned = self.turn(both, position_ids=torch.arange(len(read))[None])
        attended: Tensor = self.attention(
            both, position_embeddings=turned, attention_mask=later
        )[0][0]
        stream = attended + (normed if self.norm_before_residual else states)
        inputs = self._norm("midlayer.post_attention_layernorm", stream)
        gate, up = (self._times(f"midlayer.mlp.{one}_proj", inputs) for one in ("gate", "up"))
        return stream + self._times("midlayer.mlp.down_proj", nn.functional.silu(gate) * up)

    def _likeliest(self, state: Tensor) -> int:
        word = int(self._times("lm_head", self._norm("norm", state)).argmax())
        return word + int(self.weights["d2t"][word]) if "d2t" in self.weights else word

    def _times(self, name: str, rows: Tensor) -> Tensor:
        return rows.matmul(self.weights[f"{name}.weight"].T)

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        return nn.functional.rms_norm(rows, (HIDDEN,), self.weights[f"{name}.weight"], EPS)
