"""Prompts to pool, and what transformers' hidden states come to when pooled by hand."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.api import Engine, Pooled
from engine.request import PoolingRequest, RequestId

KINDS = {"last": "lasttoken", "mean": "mean_tokens", "cls": "cls_token"}
PACKAGE = "sentence_transformers.models"


def write_modules(folder: Path, kind: str, *, normalize: bool = True) -> None:
    """The files that sentence-transformers leaves beside a model."""
    names = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": idx, "name": str(idx), "path": paths[idx], "type": f"{PACKAGE}.{name}"}
        for idx, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    said = {f"pooling_mode_{mode}": mode == KINDS[kind] for mode in KINDS.values()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))


def poolings(prompts: Iterable[Sequence[int]], **fields: object) -> list[PoolingRequest]:
    """One request for each prompt, named by its number."""
    return [
        PoolingRequest(RequestId(f"p{number}"), tuple(tokens), **fields)  # type: ignore[arg-type]
        for number, tokens in enumerate(prompts)
    ]


def vectors(pooled: Pooled) -> Tensor:
    """[rows, width]."""
    return torch.frombuffer(bytearray(pooled.values), dtype=torch.float32).view(
        -1, pooled.width
    )


def embed(engine: Engine, asked: Sequence[PoolingRequest]) -> list[Tensor]:
    """All of them at once; what they came to, in order."""
    for request in asked:
        engine.embed(request)
    found = dict[RequestId, Tensor]()
    engine.schedule()
    while engine.load.waiting or engine.load.running:
        found |= {one.request_id: vectors(one) for one in engine.step().pooled}
        engine.schedule()
    return [found[request.request_id] for request in asked]


@torch.inference_mode()
def hidden_states(folder: Path, tokens: Sequence[int]) -> Tensor:
    """[tokens, hidden] float32, of the bare model."""
    from transformers import AutoModel  # slow to load

    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    hidden: Tensor = model.eval()(torch.tensor([tokens])).last_hidden_state[0]
    return hidden


def pooled_by_hand(hidden: Tensor, kind: str) -> Tensor:
    """[1, hidden], normalised."""
    rows = {"last": hidden[-1:], "cls": hidden[:1], "mean": hidden.mean(0, keepdim=True)}
    return torch.nn.functional.normalize(rows[kind], dim=-1)


def write_dense(
    folder: Path, inputs: int, outputs: int, bias: bool, activation: str
) -> dict[str, Tensor]:
    """One of sentence-transformers' layers; its weights."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(outputs)
    tensors = {"linear.weight": torch.randn(outputs, inputs, generator=generator)}
    if bias:
        tensors["linear.bias"] = torch.randn(outputs, generator=generator)
    save_file(tensors, folder / "model.safetensors")
    said: dict[str, object] = {"in_features": inputs, "out_features": outputs, "bias": bias}
    said["activation_function"] = f"torch.nn.modules.{activation}"
    (folder / "config.json").write_text(json.dumps(said))
    return tensors


def insert_modules(folder: Path, paths: Sequence[str]) -> None:
    """Layers between the pooling and what comes behind it."""
    file = folder / "modules.json"
    modules = json.loads(file.read_text())
    modules[2:2] = [{"path": path, "type": f"{PACKAGE}.Dense"} for path in paths]
    file.write_text(json.dumps(modules))
