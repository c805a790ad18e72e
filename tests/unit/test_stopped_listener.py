"""What a proxy that was stopped itself makes of the silence meanwhile."""

import asyncio
from collections import deque
from contextlib import closing

import pytest

from discovery.listener import Listener
from discovery.registration import Registration, Role
from discovery.registry import Registry

STOPPED_S, TTL_S = 60.0, 5.0


@pytest.mark.parametrize("stopped_s", [STOPPED_S, 3.0])
async def test_no_node_is_silent_because_the_proxy_was_stopped(stopped_s: float) -> None:
    """Nor if it was stopped for less than a silence, but heard no beat before it either."""
    registry, known, over = Registry(TTL_S), dict[float, int](), asyncio.Event()
    registry.apply(Registration(Role.DECODE, "h:1", "h:2", "d0"), now=0.0)
    back = 2.5 + stopped_s
    times = deque([0.0, 2.0, 2.5, *(back + second for second in range(8))])

    def clock() -> float:
        """Called before each look; it is the next second then."""
        known[times[0]] = len(registry)
        if len(times) == 1:
            over.set()
            return times[0]
        return times.popleft()

    with closing(Listener.bind(registry, "127.0.0.1", 0, look_s=0.0)) as listener:
        listener.clock = clock
        looking = asyncio.create_task(listener.run())
        await over.wait()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    assert [known[back + second] for second in range(8)] == [1, 1, 1, 1, 1, 1, 1, 0]
