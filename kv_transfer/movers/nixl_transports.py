"""Which of UCX's transports NIXL may use, depending on the memory to be read. Pure."""

import logging
from collections.abc import MutableMapping, Sequence

from kv_transfer.regions import Region

CPU_TRANSPORTS = "tcp,sm"
READS_BY_CUDA_IPC = "UCX_CUDA_IPC_ENABLE_GET_ZCOPY"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"
log = logging.getLogger(__name__)


def choose_transports(regions: Sequence[Region], variables: MutableMapping[str, str]) -> None:
    """Restrict UCX to CPU transports, unless a region is on a device or UCX_TLS is set.

    With a device UCX chooses by itself among CUDA IPC, RDMA and others. Where it sees no NVLink
    it would not read by CUDA IPC, not even within one GPU, but through main memory and TCP, 500
    times slower; so that is switched on, unless it is set. Memory from torch's expandable
    segments can only be copied through main memory, which is logged.
    """
    if all(region.device == "cpu" for region in regions):
        variables.setdefault("UCX_TLS", CPU_TRANSPORTS)
        return
    variables.setdefault(READS_BY_CUDA_IPC, "on")
    for name in ALLOCATOR:
        if EXPANDABLE in variables.get(name, ""):
            log.warning("%s has %s: CUDA IPC cannot share such memory", name, EXPANDABLE)
