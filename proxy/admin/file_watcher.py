"""Reloads files when they change; if one cannot be read, the last state stays in use."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

LOOK_S = 1.0
FileStates = tuple[tuple[int, int, int] | None, ...]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WatchedFiles:
    """`load` reads the files and applies them, or raises OSError or ValueError.

    It returns a summary for the log, without secrets. `trouble` is why the last load failed.
    """

    what: str
    paths: Sequence[str]
    load: Callable[[], str]
    trouble: str | None = None
    _seen: FileStates = ()

    def begin(self) -> None:
        """Load for the first time; raises what `load` does."""
        self._seen = self._states()
        self.load()

    def reload(self, *, force: bool = False) -> None:
        """Load the files again if they have changed, or if `force`."""
        seen = self._states()
        if seen == self._seen and not force:
            return
        self._seen = seen  # before it is read, so that no later change is missed
        try:
            found = self.load()
        except (OSError, ValueError) as error:
            self.trouble = str(error)
            logger.error("%s cannot be used, and stays as it was: %s", self.what, error)
        else:
            self.trouble = None
            logger.info("%s was read anew: %s", self.what, found)

    def _states(self) -> FileStates:
        """A replaced file has another inode, even if its time is the same."""
        return tuple(_state(path) for path in self.paths)


@dataclass(slots=True)
class FileWatcher:
    """Checks all files for changes while `run` runs."""

    files: list[WatchedFiles] = field(default_factory=list)
    look_s: float = LOOK_S
    _requested: asyncio.Event = field(default_factory=asyncio.Event)

    def reload_now(self) -> None:
        """Load all files now, changed or not, as on SIGHUP."""
        self._requested.set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requested.wait(), self.look_s)
            force = self._requested.is_set()
            self._requested.clear()
            for one in self.files:
                one.reload(force=force)


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
