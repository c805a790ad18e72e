"""Warns once about each name that several models share."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from discovery.kinds import Model
from proxy.models.model_pools import ModelPool

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class AmbiguousNames:
    """Remembers the names that were logged last."""

    _logged: frozenset[tuple[str, tuple[Model, ...]]] = frozenset()

    def log_new(self, live: Iterable[ModelPool]) -> None:
        """Warn about names that are newly shared; `live` are the served pools, in order."""
        found, pools = set[tuple[str, tuple[Model, ...]]](), list(live)
        for name in {name for pool in pools for name in pool.names}:
            of_name = tuple(pool.key for pool in pools if name in pool.names)
            if len(of_name) > 1:
                found.add((name, of_name))
        for name, keys in found - self._logged:
            models = ", ".join(f"{model} {fingerprint}" for model, fingerprint in keys)
            logger.warning(
                "%s is the name of %d models that are not the same (%s): each request stays "
                "with one of them, and they share requests by their nodes",
                *(name, len(keys), models),
            )
        self._logged = frozenset(found)
