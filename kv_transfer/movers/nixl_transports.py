"""Which of UCX's transports NIXL may use, depending on the memory to be read. Pure."""

import logging
from collections.abc import MutableMapping, Sequence

from kv_transfer.regions import Region

CPU_TRANSPORTS = "tcp,sm"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"
log = logging.getLogger(__name__)


def choose_transports(regions: Sequence[Region], variables: MutableMapping[str, str]) -> None:
    """Restrict UCX to CPU transports, unless a region is on a device or UCX_TLS is set.

    With a device UCX chooses by itself among CUDA IPC, RDMA and others. Memory from torch's
    expandable segments can only be copied through main memory, which is logged.
    """
    if all(region.device == "cpu" for region in regions):
        variables.setdefault("UCX_TLS", CPU_TRANSPORTS)
        return
    for name in ALLOCATOR:
        if EXPANDABLE in variables.get(name, ""):
            log.warning("%s has %s: CUDA IPC cannot share such memory", name, EXPANDABLE)
