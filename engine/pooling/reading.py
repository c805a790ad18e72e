"""Reads a checkpoint's pooling: from its config and sentence-transformers' files.

`modules.json` lists what follows the model: a `Pooling` with its own config, `Dense` layers,
and `Normalize`. Without it, decoders use their last token and encoders their first, normalised.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from engine.errors import UnusableCheckpoint
from engine.models.family import classifies, generates
from engine.pooling.config import Activation, Kind, PoolingConfig
from engine.pooling.encoders import is_encoder

MODULES = "modules.json"
MOST_LABELS = 1 << 20
MODES: Mapping[str, Kind] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
}
"""Names in older and newer files of sentence-transformers."""
PROBLEMS: Mapping[str, Activation] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


def read_pooling(folder: Path, config: Mapping[str, Any]) -> PoolingConfig:
    """Read a checkpoint's pooling; raises UnusableCheckpoint, naming the file and the entry."""
    encoder = is_encoder(config)
    default: Kind = "cls" if encoder else "last"
    given: dict[str, object] = {"generates": generates(config) and not encoder}
    if classifies(config):
        labels = _labels(config)
        given |= {"labels": labels, "activation": _activation(config, labels), "kind": default}
        given["tasks"] = ("classify",) if encoder else ("classify", "token_classify")
    else:
        given |= {**_modules(folder, default), "dimensions": _dimensions(config)}
    try:
        return msgspec.convert(given, PoolingConfig)
    except msgspec.ValidationError as error:
        raise UnusableCheckpoint(f"{folder}: {error}") from error


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes' names; two if the config has none, as in transformers."""
    named = config.get("id2label")
    if isinstance(named, Mapping) and named:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    count = config.get("num_labels") or 2
    if not isinstance(count, int) or count > MOST_LABELS:
        raise UnusableCheckpoint(f"config.json: num_labels {count} is not supported")
    return tuple(f"LABEL_{number}" for number in range(count))


def _activation(config: Mapping[str, Any], labels: tuple[str, ...]) -> Activation:
    """The activation that a cross-encoder's config names, else that of its training."""
    ours = config.get("sentence_transformers") or {}
    named = ours.get("activation_fn", config.get("sbert_ce_default_activation_function"))
    if named is not None:
        name = str(named).rpartition(".")[2].lower()
        if name not in get_args(Activation):
            raise UnusableCheckpoint(f"config.json: activation {named} is not supported")
        return next(known for known in get_args(Activation) if known == name)
    fallback: Activation = "sigmoid" if len(labels) == 1 else "softmax"
    return PROBLEMS.get(str(config.get("problem_type")), fallback)


def _dimensions(config: Mapping[str, Any]) -> object:
    """vLLM's two keys: a list of lengths, or a flag that allows any."""
    listed = config.get("matryoshka_dimensions")
    return listed or (() if config.get("is_matryoshka") else None)


def _modules(folder: Path, default: Kind) -> dict[str, object]:
    """The kind of pooling, and whether vectors are normalised."""
    if not (folder / MODULES).exists():
        return {"kind": default, "normalize": True}
    kind, normalize, dense = default, False, list[dict[str, object]]()
    for module in _read(folder / MODULES, list[dict[str, Any]]):
        match str(module.get("type")).rpartition(".")[2]:
            case "Transformer":
                pass
            case "Pooling":
                kind = _kind(folder / str(module.get("path")) / "config.json")
            case "Normalize":
                normalize = True
            case "Dense":
                dense.append(_dense(folder, str(module.get("path"))))
            case other:
                raise UnusableCheckpoint(f"{MODULES}: module {other} is not supported")
    return {"kind": kind, "normalize": normalize, "dense": dense}


def _dense(folder: Path, path: str) -> dict[str, object]:
    """One dense layer; its default activation is tanh, as in sentence-transformers."""
    said = _read(folder / path / "config.json", dict[str, Any])
    name = str(said.get("activation_function", "Tanh")).rpartition(".")[2].lower()
    return {
        "path": path,
        "inputs": said.get("in_features"),
        "outputs": said.get("out_features"),
        "bias": said.get("bias", True),
        "activation": name,
    }


def _kind(file: Path) -> Kind:
    said = _read(file, dict[str, Any])
    modes = [key for key, on in said.items() if key.startswith("pooling_mode_") and on is True]
    named = said.get("pooling_mode")
    modes += [str(one) for one in (named if isinstance(named, list) else [named]) if one]
    if len(modes) != 1 or modes[0] not in MODES:
        told = " and ".join(modes) or "nothing"
        raise UnusableCheckpoint(f"{file}: pooling by {told} is not supported")
    return MODES[modes[0]]


def _read(file: Path, kind: Any) -> Any:  # noqa: ANN401  JSON
    try:
        return msgspec.convert(json.loads(file.read_bytes()), kind)
    except (OSError, ValueError) as error:
        raise UnusableCheckpoint(f"{file}: {error}") from error
