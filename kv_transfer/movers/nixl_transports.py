"""Which of UCX's transports NIXL may use, by the memory that is to be read. Pure."""

import logging
from collections.abc import MutableMapping, Sequence

from kv_transfer.regions import Region

CPU_TRANSPORTS = "tcp,sm"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"
log = logging.getLogger(__name__)


def choose_transports(regions: Sequence[Region], variables: MutableMapping[str, str]) -> None:
    """Without a device and without a choice, UCX stays on this CPU.

    With a device it chooses itself, among CUDA IPC, RDMA and the others. Memory that torch
    has put together of segments it can only copy through main memory, which is told.
    """
    if all(region.device == "cpu" for region in regions):
        variables.setdefault("UCX_TLS", CPU_TRANSPORTS)
        return
    for name in ALLOCATOR:
        if EXPANDABLE in variables.get(name, ""):
            log.warning("%s has %s: CUDA IPC cannot share such memory", name, EXPANDABLE)
