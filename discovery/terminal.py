"""Handles SIGHUP: reload files, or stop if the controlling terminal was closed."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STANDARD = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class ControllingTerminal:
    """Those of the standard files that were terminals at the start; there may be none."""

    files: Sequence[int]

    @classmethod
    def find(cls, files: Sequence[int] = STANDARD) -> "ControllingTerminal":
        """The terminal at this moment."""
        return cls([one for one in files if os.isatty(one)])

    @property
    def gone(self) -> bool:
        """Whether the terminal was closed: one of its files is no longer a terminal."""
        return any(not os.isatty(one) for one in self.files)


def handle_hang_ups(
    reread: Callable[[], None],
    *,
    stop: Callable[[], None],
    terminal: ControllingTerminal | None = None,
) -> None:
    """SIGHUP reloads files, as with other servers, unless the terminal was closed.

    In that case the process stops; SIGHUP then comes more than once, from shell and kernel, but
    counts once. Call it within a running event loop.
    """
    started_from, stopped = terminal or ControllingTerminal.find(), False

    def on_hang_up() -> None:
        nonlocal stopped
        if not started_from.gone:
            reread()
        elif not stopped:
            stopped = True
            stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hang_up)
