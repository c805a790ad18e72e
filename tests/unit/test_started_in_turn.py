"""Of many requests that a node has read at once, a few start in each turn of its loop."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from api.door.limiter import ConnectionLimiter, DoorLimits
from api.starting import STARTING
from node.serving import uvicorn_config

MANY = 10 * STARTING


async def test_others_go_on_between_the_starts_of_many() -> None:
    started, turns = list[int](), [0]

    async def app(scope: Mapping[str, int], *_: object) -> None:
        started.append(scope["number"])

    door: Any = uvicorn_config(app, ConnectionLimiter(DoorLimits())).app
    calls = [asyncio.ensure_future(door({"number": n}, None, None)) for n in range(MANY)]
    while len(started) < MANY:
        await asyncio.sleep(0)
        turns.append(len(started))
    await asyncio.gather(*calls)
    assert started == list(range(MANY))
    assert max(after - before for before, after in pairwise(turns)) == STARTING
