"""Which tokens end an answer, by what a checkpoint's files say. Torch-free.

Those of generation_config.json, or else of config.json; and the tokenizer's own, as in vLLM:
models that were taught to converse often end with that one, and say so nowhere else.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.checkpoints.checkpoint import Checkpoint, read_json
from engine.errors import UnusableCheckpoint

KEY = "eos_token_id"


class _Added(msgspec.Struct):
    """A token that is no part of the vocabulary that was learned."""

    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    """What of a tokenizer.json is read."""

    added_tokens: tuple[_Added, ...] = ()


def end_tokens(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Token ids, each once; raises UnusableCheckpoint for files that cannot be read."""
    ends = [*_configured(checkpoint), *_tokenizers(checkpoint.folder)]
    if odd := [one for one in ends if not isinstance(one, int) or isinstance(one, bool)]:
        raise UnusableCheckpoint(f"{KEY} {odd[0]!r} is no token id")
    return tuple(dict.fromkeys(ends))


def _configured(checkpoint: Checkpoint) -> list[Any]:
    """The first that says anything."""
    generation = checkpoint.folder / "generation_config.json"
    configs = [read_json(generation)] if generation.exists() else []
    for config in (*configs, checkpoint.config, checkpoint.config.get("text_config") or {}):
        if (given := config.get(KEY)) is not None:
            return given if isinstance(given, list) else [given]
    return []


def _tokenizers(folder: Path) -> Iterator[int]:
    """By the name that its settings have for it."""
    settings, tokenizer = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if not (settings.exists() and tokenizer.exists()):
        return
    name = read_json(settings).get("eos_token")
    name = name.get("content") if isinstance(name, Mapping) else name
    try:
        known = msgspec.json.decode(tokenizer.read_bytes(), type=_Tokenizer)
    except (msgspec.MsgspecError, OSError, UnicodeDecodeError) as error:
        raise UnusableCheckpoint(f"{tokenizer}: {error}") from error
    yield from [one.id for one in known.added_tokens if one.content == name][:1]
