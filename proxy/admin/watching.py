"""Files that are read anew when they change; what cannot be read leaves all as it was."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

LOOK_S = 1.0
Seen = tuple[tuple[int, int, int] | None, ...]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Watched:
    """`take` reads the files and has what they say used, or raises OSError or ValueError.

    It answers with what there is, in a few words without secrets. `trouble` is why the files
    could not be used when they were read last.
    """

    what: str
    paths: Sequence[str]
    take: Callable[[], str]
    trouble: str | None = None
    _seen: Seen = ()

    def begin(self) -> None:
        """The first time; raises what `take` does."""
        self._seen = self._look()
        self.take()

    def look(self, *, anyway: bool = False) -> None:
        """Read them again if they have changed, or anyway."""
        seen = self._look()
        if seen == self._seen and not anyway:
            return
        self._seen = seen  # before it is read, so that no later change is missed
        try:
            found = self.take()
        except (OSError, ValueError) as error:
            self.trouble = str(error)
            logger.error("%s cannot be used, and stays as it was: %s", self.what, error)
        else:
            self.trouble = None
            logger.info("%s was read anew: %s", self.what, found)

    def _look(self) -> Seen:
        """Whoever replaces a file by another changes its inode, if not its time."""
        return tuple(_state(path) for path in self.paths)


@dataclass(slots=True)
class Watch:
    """Looks after all of them while `run` runs."""

    files: list[Watched] = field(default_factory=list)
    look_s: float = LOOK_S
    _told: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        """Read everything now, changed or not: somebody says so."""
        self._told.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), self.look_s)
            anyway = self._told.is_set()
            self._told.clear()
            for one in self.files:
                one.look(anyway=anyway)


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
