"""What a checkpoint's generation_config.json says for clients that say nothing."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from api.hub import fetched, local_folder
from api.wire import UNREADABLE, explained
from engine.request import LARGEST_TOKEN, Limit, Probability, Repetition, Temperature

FILE = "generation_config.json"
AUTO, NONE = "auto", "vllm"
"""The model's own, and none: OpenAI's defaults. These are vLLM's words."""


class _Config(msgspec.Struct, frozen=True):
    """The keys that are read; null is the same as absent."""

    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: int | None = None
    min_p: Probability | None = None
    repetition_penalty: Repetition | None = None
    max_new_tokens: Limit | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """The sampling of a request that leaves it open; OpenAI's own where nothing else is said.

    `max_new_tokens` is how long an answer may be; None: as the endpoint has it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None


OPENAI = Defaults()


def load_defaults(setting: str, model: str | None) -> Defaults:
    """`setting` is AUTO, NONE, or a folder that has the file; `model` a folder or a hub name.

    A model need not have the file; raises OSError, naming the file, where it says what cannot
    be meant, and where a folder that was asked for has none.
    """
    if setting == NONE or (setting == AUTO and model is None):
        return OPENAI
    file = _find(model if setting == AUTO and model else setting)
    if file is None:
        if setting == AUTO:
            return OPENAI
        raise OSError(f"{setting} has no {FILE}")
    try:
        return _read(file)
    except UNREADABLE as error:
        raise OSError(f"{file}: {explained(error)}") from error


def _find(model: str) -> Path | None:
    """In a folder, or in what the hub gives under that name."""
    folder = local_folder(model)
    if folder is None:
        return fetched(model, FILE)
    return folder / FILE if (folder / FILE).is_file() else None


def _read(file: Path) -> Defaults:
    config = msgspec.json.decode(file.read_bytes(), type=_Config)
    said = {
        name: value for name, value in msgspec.to_builtins(config).items() if value is not None
    }
    if "top_k" in said:  # whatever is not a number of tokens: all
        said["top_k"] = min(max(said["top_k"], 0), LARGEST_TOKEN)
    if said.get("top_p") == 0:
        del said["top_p"]
    return Defaults(**said)
