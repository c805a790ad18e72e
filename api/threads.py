"""Runs work in a thread, or refuses it if the system has no thread for this process."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from api.errors import TooBusy

Done = TypeVar("Done")
Threads = Executor
LONG_AT_ONCE = 2


def few_threads() -> Threads:
    """Threads for work that takes seconds: while it waits for one, other work goes on."""
    return ThreadPoolExecutor(LONG_AT_ONCE, "long")


async def run_in_thread(work: Callable[[], Done], threads: Threads | None = None) -> Done:
    """The result of the work, which runs in one of these threads, or of the event loop's. A
    call that is cancelled takes back work that has not begun. Raises TooBusy.
    """
    left = [work]

    def turn() -> Done:
        return left.pop()()

    try:
        done = asyncio.get_running_loop().run_in_executor(threads, turn)
    except RuntimeError as error:  # the executor keeps a turn that it has no thread for
        left.clear()
        raise TooBusy(f"There is no thread for this request now: {error}") from error
    try:
        return await done
    finally:
        del done  # a failure's traceback has this frame, and would keep itself and the request
