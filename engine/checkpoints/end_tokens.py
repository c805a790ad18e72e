"""The end tokens (EOS) of a checkpoint. Torch-free.

They are those of generation_config.json, or else of config.json, and the tokenizer's
`eos_token`, as in vLLM: many chat models end with that one, but name it in no config.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.checkpoints.checkpoint import Checkpoint, read_json
from engine.errors import UnusableCheckpoint

KEY = "eos_token_id"


class _Added(msgspec.Struct):
    """A token that was added to the tokenizer's learned vocabulary."""

    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    """The part of a tokenizer.json that is read."""

    added_tokens: tuple[_Added, ...] = ()


def end_tokens(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Token ids, each once; raises UnusableCheckpoint for files that cannot be read."""
    ends = [*_configured(checkpoint), *_tokenizers(checkpoint.folder)]
    if odd := [one for one in ends if not isinstance(one, int) or isinstance(one, bool)]:
        raise UnusableCheckpoint(f"{KEY} {odd[0]!r} is no token id")
    return tuple(dict.fromkeys(ends))


def _configured(checkpoint: Checkpoint) -> list[Any]:
    """`eos_token_id` of the first config that has one."""
    generation = checkpoint.folder / "generation_config.json"
    configs = [read_json(generation)] if generation.exists() else []
    for config in (*configs, checkpoint.config, checkpoint.config.get("text_config") or {}):
        if (given := config.get(KEY)) is not None:
            return given if isinstance(given, list) else [given]
    return []


def _tokenizers(folder: Path) -> Iterator[int]:
    """The id of the tokenizer's `eos_token`."""
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
