"""From safetensors files to a Decoder: every tensor once, fused where the model fuses.

Files are mapped, not read; each tensor is copied once, into its place. What is missing,
unknown or of another shape is refused by name.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.attention.style import AttentionStyle
from engine.errors import UnusableCheckpoint
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder, Layer, Mlp
from engine.models.grouped_attention import GroupedAttention
from engine.models.linear import Linear, linear
from engine.models.mlp import GatedMlp
from engine.models.norm import Norm
from engine.models.rope import rope_table

IGNORED = "rotary_emb.inv_freq"  # old checkpoints carry it; it follows from the config


def load_decoder(
    checkpoint: Checkpoint,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    max_len: int,
) -> Decoder:
    """Read all weights, showing a progress bar; `max_len` positions get rotary angles."""
    files = checkpoint.weight_files
    with _open_all(files) as tensors:
        shelf = _Shelf(tensors, dtype, device)
        with _progress(files) as progress:
            shelf.progress = progress
            decoder = _build(shelf, config, max_len)
        shelf.must_be_empty()
    return decoder


def _build(shelf: "_Shelf", config: ModelConfig, max_len: int) -> Decoder:
    hidden, vocabulary = config.hidden_size, config.vocab_size
    embedding = shelf.take("model.embed_tokens.weight", vocabulary, hidden)
    layers = tuple(_layer(shelf, config, index) for index in range(config.num_layers))
    norm = _norm(shelf, config, "model.norm", hidden)
    if config.tied_embeddings:
        shelf.drop("lm_head.weight")
        head = linear(embedding)
    else:
        head = linear(shelf.take("lm_head.weight", vocabulary, hidden))
    rope = rope_table(config, max_len, shelf.device).to(shelf.dtype)
    return Decoder(config, embedding, layers, norm, head, (rope,))


def _layer(shelf: "_Shelf", config: ModelConfig, index: int) -> Layer:
    at, hidden = f"model.layers.{index}.", config.hidden_size
    return Layer(
        attention=_attention(shelf, config, index, f"{at}self_attn."),
        mlp=_mlp(shelf, config, f"{at}mlp."),
        attention_norm=_norm(shelf, config, f"{at}input_layernorm", hidden),
        mlp_norm=_norm(shelf, config, f"{at}post_attention_layernorm", hidden),
    )


def _attention(shelf: "_Shelf", config: ModelConfig, index: int, at: str) -> GroupedAttention:
    hidden, head_dim = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * head_dim, config.num_kv_heads * head_dim
    parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    return GroupedAttention(
        index,
        config.num_heads,
        config.num_kv_heads,
        shelf.fuse(at, parts, hidden, bias=config.qkv_bias),
        shelf.fuse(at, {"o_proj": hidden}, queries, bias=config.output_bias),
        AttentionStyle(head_dim**-0.5, config.windows[index]),
        query_norm=_norm(shelf, config, f"{at}q_norm", head_dim) if config.qk_norm else None,
        key_norm=_norm(shelf, config, f"{at}k_norm", head_dim) if config.qk_norm else None,
    )


def _mlp(shelf: "_Shelf", config: ModelConfig, at: str) -> Mlp:
    hidden, wide = config.hidden_size, config.intermediate_size
    parts = {"gate_proj": wide, "up_proj": wide}
    return GatedMlp(
        shelf.fuse(at, parts, hidden, bias=config.mlp_bias),
        shelf.fuse(at, {"down_proj": hidden}, wide, bias=config.mlp_bias),
    )


def _norm(shelf: "_Shelf", config: ModelConfig, name: str, size: int) -> Norm:
    return Norm(shelf.take(f"{name}.weight", size), config.norm_eps)


@dataclass(slots=True)
class _Shelf:
    """All tensors of all files by name; each is taken once."""

    files: dict[str, safe_open]
    dtype: torch.dtype
    device: torch.device
    progress: Progress | None = None

    def take(self, name: str, *shape: int) -> Tensor:
        """A copy of one tensor in our dtype, on our device."""
        target = torch.empty(shape, dtype=self.dtype, device=self.device)
        self._copy(name, target)
        return target

    def fuse(self, at: str, parts: Mapping[str, int], inputs: int, *, bias: bool) -> Linear:
        """Several products of the same input as one, their rows behind one another."""
        rows = sum(parts.values())
        weight = torch.empty((rows, inputs), dtype=self.dtype, device=self.device)
        offsets = torch.empty(rows, dtype=self.dtype, device=self.device) if bias else None
        first = 0
        for name, outputs in parts.items():
            self._copy(f"{at}{name}.weight", weight[first : first + outputs])
            if offsets is not None:
                self._copy(f"{at}{name}.bias", offsets[first : first + outputs])
            first += outputs
        return linear(weight, offsets)

    def drop(self, name: str) -> None:
        """Leave out a tensor that may be there."""
        self.files.pop(name, None)

    def must_be_empty(self) -> None:
        """Whatever was not asked for belongs to another model."""
        if left := sorted(self.files):
            raise UnusableCheckpoint(f"{len(left)} tensors too many, such as {left[0]}")

    def _copy(self, name: str, target: Tensor) -> None:
        if name not in self.files:
            raise UnusableCheckpoint(f"tensor {name} is missing")
        tensor = self.files.pop(name).get_tensor(name)
        if tensor.shape != target.shape:
            shapes = f"{tuple(tensor.shape)}, the config says {tuple(target.shape)}"
            raise UnusableCheckpoint(f"tensor {name} is {shapes}")
        target.copy_(tensor)
        if self.progress is not None:
            self.progress.advance(self.progress.task_ids[0], tensor.nbytes)


@contextmanager
def _open_all(files: Sequence[Path]) -> Iterator[dict[str, safe_open]]:
    tensors = dict[str, safe_open]()
    for file in files:
        try:
            opened = safe_open(file, framework="pt")
        except (SafetensorError, OSError) as error:
            raise UnusableCheckpoint(f"{file}: {error}") from error
        tensors |= {name: opened for name in opened.keys() if IGNORED not in name}  # noqa: SIM118
    yield tensors


@contextmanager
def _progress(files: Sequence[Path]) -> Iterator[Progress]:
    """Bytes and rate on standard error, if that is a terminal somebody may watch."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console, total = Console(stderr=True), sum(file.stat().st_size for file in files)
    with Progress(
        *columns, TransferSpeedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("loading weights", total=total)
        yield progress
        progress.update(task, completed=total)
