"""Reads a model's pooling config from its small files, without asking its nodes."""

import logging
from pathlib import Path

import msgspec

from api.hub import fetched, local_path
from api.wire import UNREADABLE
from engine.errors import UnusableCheckpoint
from engine.pooling.config import PoolingConfig
from engine.pooling.reading import MODULES, read_pooling

CONFIG = "config.json"
NONSENSE = (ValueError, TypeError, AttributeError, OverflowError)
"""Errors that values of unexpected types in a config may cause."""
log = logging.getLogger(__name__)


def load_pooling(model: str | None) -> PoolingConfig | None:
    """The pooling config of a folder or a hub name; None if there is none that we can read.

    The model's nodes may be other servers, which can read more.
    """
    folder = _folder(model) if model else None
    if folder is None or not (folder / CONFIG).is_file():
        return None
    try:
        config = msgspec.json.decode((folder / CONFIG).read_bytes(), type=dict[str, object])
        return read_pooling(folder, config)
    except (*UNREADABLE, UnusableCheckpoint, *NONSENSE) as error:
        log.warning("what %s pools is left to its nodes: %s", model, error)
        return None


def _folder(model: str) -> Path | None:
    """The folder of the files, fetched from the hub if necessary."""
    if (folder := local_path(model)) is not None:
        return folder
    modules, config = fetched(model, MODULES), fetched(model, CONFIG)
    for path in _paths(modules) if modules else ():
        fetched(model, f"{path}/{CONFIG}")
    return config.parent if config else None


def _paths(modules: Path) -> list[str]:
    """The folders of the layers after the model; empty if the file makes no sense."""
    try:
        said = msgspec.json.decode(modules.read_bytes(), type=list[dict[str, object]])
    except UNREADABLE:
        return []
    return [str(one["path"]) for one in said if one.get("path")]
