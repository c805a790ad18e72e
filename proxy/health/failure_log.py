"""Failures of calls are noted, and operators told of what only they can mend."""

import logging

from proxy.errors import NodeFailed
from proxy.health.health import Health

log = logging.getLogger(__name__)


def note_failure(health: Health, failure: NodeFailed, *, begun: float, now: float) -> None:
    """A call of an attempt that began at `begun` failed; a line of the log may say so."""
    if trouble := health.record_failure(failure, begun=begun, now=now):
        log.warning("%s", trouble)
