"""Records failed calls in Health, and logs those that only an operator can fix."""

import logging
from collections.abc import Iterable

from discovery.node import Node
from proxy.errors import NodeFailed
from proxy.health.health import Health

log = logging.getLogger(__name__)


def note_failure(
    health: Health,
    failure: NodeFailed,
    nodes: Iterable[Node],
    *,
    begun: float,
    now: float,
) -> None:
    """Record a failure of an attempt that began at `begun` on `nodes`; log Health's warning."""
    if warning := health.record_failure(failure, nodes, begun=begun, now=now):
        log.warning("%s", warning)
