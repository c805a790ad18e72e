"""Who a node is, to the nodes that it hands KV to."""

from dataclasses import dataclass
from pathlib import Path
from uuid import getnode

from kv_transfer.layout import KvLayout

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is, to other nodes; `host` and `port` are where its side channel is."""

    engine_id: str
    host: str
    port: int
    fingerprint: str
    layout: KvLayout


def this_machine() -> str:
    """A name that two processes share when they run on the same kernel."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else f"{getnode():x}"
