"""Reports to the supervisor how many nodes of each role the proxy knows."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from discovery.lifeline import report_to_starter
from discovery.registration import Role
from discovery.registry import Registry

LOOK_S = 0.1


def node_count_key(role: Role) -> str:
    """The name of this role's count in the report."""
    return f"{role.name.lower()}_nodes"


async def report_node_counts(
    fd: int,
    registry: Registry,
    passed_on: Callable[[], Awaitable[None]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send the counts of nodes that take work whenever they change, until cancelled.

    `fd` is the supervisor's socket: see `--supervisor-fd`. `passed_on` returns once all workers
    know the nodes that this registry has: whichever of them accepts the first call may use all
    that were counted.
    """
    reported, seen = dict[str, str](), -1
    while True:
        if registry.changes != seen:
            seen, now = registry.changes, clock()
            counts = {
                node_count_key(role): str(len(registry.nodes(role, now=now))) for role in Role
            }
            if counts != reported:
                reported = counts
                if passed_on is not None:
                    await passed_on()
                report_to_starter(fd, **counts)
        await asyncio.sleep(LOOK_S)
