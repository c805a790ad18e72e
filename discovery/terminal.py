"""Handles SIGHUP: reload files, or stop if the controlling terminal was closed."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STANDARD = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class ControllingTerminal:
    """The standard files that were a terminal at the start; there may have been none."""

    files: Sequence[int]

    @classmethod
    def find(cls, files: Sequence[int] = STANDARD) -> "ControllingTerminal":
        """As it is now."""
        return cls([one for one in files if os.isatty(one)])

    @property
    def gone(self) -> bool:
        """Whether the terminal was closed: its files are no terminal any more."""
        return any(not os.isatty(one) for one in self.files)


def handle_hang_ups(
    reread: Callable[[], None],
    *,
    stop: Callable[[], None],
    terminal: ControllingTerminal | None = None,
) -> None:
    """SIGHUP reloads files, as with other servers, unless the terminal was closed.

    Then the process stops; SIGHUP comes more than once then, from shell and kernel, and counts
    once. To be called within a running event loop.
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
