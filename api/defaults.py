"""Reads sampling defaults from a checkpoint's generation_config.json."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from api.hub import text_file
from api.wire import UNREADABLE, explained
from engine.request import LARGEST_TOKEN, Limit, Probability, Repetition, Temperature

FILE = "generation_config.json"
AUTO, NONE = "auto", "vllm"
"""The model's own defaults, or none (OpenAI's defaults). The names are vLLM's."""


class _Config(msgspec.Struct, frozen=True):
    """The keys of generation_config.json that are read; null is the same as absent."""

    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: int | None = None
    min_p: Probability | None = None
    repetition_penalty: Repetition | None = None
    max_new_tokens: Limit | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """Sampling parameters for requests that leave them out; where unset here, OpenAI's defaults
    apply.

    `max_new_tokens` is the longest answer; None: the endpoint's own default applies.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None


OPENAI = Defaults()


def load_defaults(setting: str, model: str | None) -> Defaults:
    """Load the defaults; `setting` is AUTO, NONE, or a folder that has the file.

    `model` is a folder or a hub name, and need not have the file. Raises OSError, naming the
    file, if its values make no sense, or if the folder named by `setting` has no such file.
    """
    if setting == NONE or (setting == AUTO and model is None):
        return OPENAI
    file = text_file(model if setting == AUTO and model else setting, FILE)
    if file is None:
        if setting == AUTO:
            return OPENAI
        raise OSError(f"{setting} has no {FILE}")
    try:
        return _read(file)
    except UNREADABLE as error:
        raise OSError(f"{file}: {explained(error)}") from error


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
