"""Runs work in a thread, or refuses it if the system has no thread for this process."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from api.errors import TooBusy

Done = TypeVar("Done")


async def run_in_thread(work: Callable[[], Done]) -> Done:
    """The result of the work, which runs in a thread of the event loop's; raises TooBusy."""
    left = [work]

    def turn() -> Done:
        return left.pop()()

    try:
        done = asyncio.get_running_loop().run_in_executor(None, turn)
    except RuntimeError as error:  # the executor keeps a turn that it has no thread for
        left.clear()
        raise TooBusy(f"There is no thread for this request now: {error}") from error
    return await done
