"""Whether the terminal that somebody started this from is still there, and what if not."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STANDARD = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Terminal:
    """The standard files that were a terminal's at the start; there may have been none."""

    files: Sequence[int]

    @classmethod
    def find(cls, files: Sequence[int] = STANDARD) -> "Terminal":
        """As it is now."""
        return cls([one for one in files if os.isatty(one)])

    @property
    def gone(self) -> bool:
        """Whether it was hung up since: then it is a terminal no longer."""
        return any(not os.isatty(one) for one in self.files)


def hear_hang_ups(
    reread: Callable[[], None],
    *,
    stop: Callable[[], None],
    terminal: Terminal | None = None,
) -> None:
    """SIGHUP has files read again, as with other servers, but for one from a closed terminal.

    Then whoever started this has left: it stops, and what is said more than once then, by shell
    and system, counts once. To be called within a running event loop.
    """
    started_from, stopped = terminal or Terminal.find(), False

    def hear() -> None:
        nonlocal stopped
        if not started_from.gone:
            reread()
        elif not stopped:
            stopped = True
            stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hear)
