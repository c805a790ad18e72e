"""Warns once about each name that stands for several models."""

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
    _hidden: frozenset[tuple[str, Model]] = frozenset()

    def log_new(self, live: Iterable[ModelPool]) -> None:
        """Warn about names that are newly shared; `live` are the served pools, in order."""
        pools = list(live)
        self._log_shared(pools)
        self._log_hidden(pools)

    def _log_shared(self, pools: list[ModelPool]) -> None:
        found = set[tuple[str, tuple[Model, ...]]]()
        for name in {name for pool in pools for name in pool.all_names}:
            of_name = tuple(pool.key for pool in pools if name in pool.all_names)
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

    def _log_hidden(self, pools: list[ModelPool]) -> None:
        """Warn about an adapter that is called as the proxy's settings call its model."""
        found = {
            (name, pool.key)
            for pool in pools
            for name in set(pool.adapters).intersection(pool.names)
        }
        for name, (model, fingerprint) in found - self._hidden:
            logger.warning(
                "%s is a name of the model %s %s and of one of its adapters: requests get the "
                "model, and none can get the adapter",
                *(name, model, fingerprint),
            )
        self._hidden = frozenset(found)
