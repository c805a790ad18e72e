"""What a proxy goes on to tell whoever started it: how many nodes of each kind there are."""

import asyncio
import time
from collections.abc import Callable

from discovery.lifeline import tell
from discovery.registration import Role
from discovery.registry import Registry

LOOK_S = 0.1


def nodes_key(role: Role) -> str:
    """What the count of these is called."""
    return f"{role.name.lower()}_nodes"


async def tell_of_nodes(
    fd: int, registry: Registry, clock: Callable[[], float] = time.monotonic
) -> None:
    """Those that take work, whenever one has come or changed, until cancelled.

    `fd` is the starter's socket: see `--supervisor-fd`.
    """
    told, seen = dict[str, str](), -1
    while True:
        if registry.changes != seen:
            seen, now = registry.changes, clock()
            counts = {nodes_key(role): str(len(registry.nodes(role, now=now))) for role in Role}
            if counts != told:
                told = counts
                tell(fd, **counts)
        await asyncio.sleep(LOOK_S)
