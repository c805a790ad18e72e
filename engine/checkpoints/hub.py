"""Where a model's files are: in a folder, or on the Hugging Face hub. Torch-free."""

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)


class NotCached(OSError):
    """The hub cannot be reached, and its cache has nothing of this name."""


def folder_of(model: str, patterns: Sequence[str], without: Sequence[str] = ()) -> Path:
    """The path, or else the folder in the cache that has the hub's files of these patterns,
    downloaded, but for those of `without`.

    If the hub cannot be reached, the folder has what was cached before. Raises NotCached, and
    OSError with the hub's reason. What was found is not asked for again in this process.
    """
    path = _local_path(model)
    return _snapshot(model, tuple(patterns), tuple(without)) if path is None else path


def _local_path(model: str) -> Path | None:
    """The path; None if it may be a hub name: there is no such path, nor is it written like
    one. It need not be a folder.
    """
    path = Path(model).expanduser()
    return path if path.exists() or model.startswith(("/", ".", "~")) else None


@cache
def _snapshot(model: str, patterns: tuple[str, ...], without: tuple[str, ...]) -> Path:
    # seldom needed, and slow to import
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        IncompleteSnapshotError,
        LocalEntryNotFoundError,
    )

    allowed, ignored = list(patterns), list(without)
    try:
        return Path(snapshot_download(model, allow_patterns=allowed, ignore_patterns=ignored))
    except IncompleteSnapshotError as error:
        log.warning("%s: the hub cannot be reached, and the cache lacks some files", model)
        return Path(error.snapshot_path)
    except LocalEntryNotFoundError as error:
        raise NotCached(_in_one_line(error)) from error
    except (HFValidationError, OSError) as error:
        raise OSError(_in_one_line(error)) from error


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
