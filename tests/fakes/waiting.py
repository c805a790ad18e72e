"""Waiting for what nobody tells of: it is looked at again and again, up to a limit."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

PATIENCE_S = 60.0
LOOK_AGAIN_S = 0.05  # at what other processes do


async def comes_true(holds: Callable[[], object], look_s: float = 0.0) -> None:
    """Raises TimeoutError if it never does. Without `look_s` others of this loop have turns."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  nobody tells of it
            await asyncio.sleep(look_s)


async def is_seen(look: Callable[[], Awaitable[object]], within_s: float) -> bool:
    """Whether it comes to be so within that time, as other processes say when asked."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not await look():  # noqa: ASYNC110
                await asyncio.sleep(LOOK_AGAIN_S)
            return True
    return False
