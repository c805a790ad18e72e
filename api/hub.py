"""A model's small files, which say how text is read, by its folder or its name on the hub."""

from pathlib import Path

from engine.checkpoints.hub import NotCached, folder_of

SMALL = "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"


def text_folder(model: str) -> Path:
    """The path, which need not be a folder, or that of the hub's files, downloaded if they are
    not cached. Raises OSError.
    """
    return folder_of(model, SMALL)


def text_file(model: str, name: str) -> Path | None:
    """The file, if there is one; without hub and cache there is none. Raises OSError."""
    try:
        file = text_folder(model) / name
    except NotCached:
        return None
    return file if file.is_file() else None
