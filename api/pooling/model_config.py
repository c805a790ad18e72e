"""Reads a model's pooling config from its small files, without asking its nodes."""

import logging

import msgspec

from api.hub import text_file
from api.wire import UNREADABLE
from engine.errors import UnusableCheckpoint
from engine.pooling.config import PoolingConfig
from engine.pooling.reading import read_pooling

CONFIG = "config.json"
NONSENSE = (ValueError, TypeError, AttributeError, OverflowError)
"""Errors that values of unexpected types in a config may cause."""
log = logging.getLogger(__name__)


def load_pooling(model: str | None) -> PoolingConfig | None:
    """The pooling config of a folder or a hub name; None if there is none that we can read.

    The model's nodes may be other servers, which can read more.
    """
    file = text_file(model, CONFIG) if model else None
    if file is None:
        return None
    try:
        config = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
        return read_pooling(file.parent, config)
    except (*UNREADABLE, UnusableCheckpoint, *NONSENSE) as error:
        log.warning("what %s pools is left to its nodes: %s", model, error)
        return None
