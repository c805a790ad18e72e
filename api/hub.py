"""Files of a checkpoint, by its folder or its name on the hub. Torch-free."""

from functools import cache
from pathlib import Path

ASKED_FOR = "config.json"


def local_path(model: str) -> Path | None:
    """The path; None if it may be a hub name: there is no such path, nor is it written like
    one. It need not be a folder.
    """
    path = Path(model).expanduser()
    return path if path.exists() or model.startswith(("/", ".", "~")) else None


def fetched(model: str, file: str) -> Path | None:
    """The file from the hub or its cache; None if there is none. Raises OSError."""
    from huggingface_hub.errors import LocalEntryNotFoundError
    from transformers.utils.hub import cached_file  # takes a second, and no torch

    try:
        require(model)
    except LocalEntryNotFoundError:  # the hub cannot be reached
        return None
    found = cached_file(model, file, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


@cache  # one that was found is asked for once, for all its files
def require(model: str) -> None:
    """Raise OSError for what is no folder, nor cached, nor found on the hub. That is tried
    once: transformers tries six times for each file, half a minute long.
    """
    if Path(model).is_dir():
        return
    from huggingface_hub import snapshot_download  # takes half a second
    from huggingface_hub.errors import HFValidationError

    try:
        snapshot_download(model, allow_patterns=[ASKED_FOR])
    except HFValidationError as error:
        raise OSError(str(error)) from error
