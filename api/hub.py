"""Files of a checkpoint, by its folder or its name on the hub. Torch-free."""

from pathlib import Path


def local_folder(model: str) -> Path | None:
    """The folder; None if it may be a hub name: no such folder, and not written like one."""
    folder = Path(model).expanduser()
    return folder if folder.is_dir() or model.startswith(("/", ".", "~")) else None


def fetched(model: str, file: str) -> Path | None:
    """The file from the hub or its cache; None if there is none. Raises OSError."""
    from transformers.utils.hub import cached_file  # takes a second, and no torch

    found = cached_file(model, file, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None
