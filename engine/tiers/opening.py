"""Opens the tiers below one engine's KV memory, from its settings."""

import logging
import time
from hashlib import blake2b
from pathlib import Path

from engine.api import EngineInfo
from engine.attention.kv_memory import KvMemory
from engine.errors import UnusableTier
from engine.settings import EngineConfig
from engine.tiers.book import TierBook
from engine.tiers.disk_book import DiskBook
from engine.tiers.disk_thread import DiskThread
from engine.tiers.host_book import HostBook
from engine.tiers.host_memory import HostMemory
from engine.tiers.slab import Slab
from engine.tiers.tiers import Tiers

GIB = 1 << 30
LEAST_SLOTS = 16
LAYOUT = 1  # version of the data on disk: raise it if a block's layout or the keys change
log = logging.getLogger(__name__)


def check_tiers(config: EngineConfig) -> None:
    """Check the settings before anything is loaded; raises UnusableTier."""
    if config.kv_offloading_size is not None and config.device.startswith("cpu"):
        raise UnusableTier(
            "--kv-offloading-size: with --device cpu KV is in host memory already; "
            "--kv-cache-memory-bytes makes it larger, --kv-disk-path puts a disk below it"
        )


def open_tiers(config: EngineConfig, info: EngineInfo, memory: KvMemory) -> Tiers | None:
    """The tiers; None if none is configured. Raises UnusableTier."""
    if config.kv_offloading_size is None and config.kv_disk_path is None:
        return None
    blocks = memory.bytes_of_blocks
    slots = _slots(config, info, *blocks.shape)
    host = HostMemory(blocks, slots)
    book = TierBook(HostBook(slots), blocks.shape[1])
    if config.kv_disk_path is None:
        return Tiers(book, host, None, time.monotonic)
    size = int(config.kv_disk_size * GIB)
    slab = Slab.open(Path(config.kv_disk_path), _name(info, memory), blocks.shape[1], size)
    known = slab.known()
    log.info("%d of %d blocks of KV are on disk: %s", len(known), slab.places, slab.folder)
    book.add_disk(DiskBook(slab.places, known))
    return Tiers(book, host, DiskThread(slab, host), time.monotonic)


def staging_slots(num_blocks: int, longest: int) -> int:
    """How many blocks may be in transfer to and from the disk, if host memory is not a tier.

    An eighth of KV memory's blocks; or twice the blocks of the `longest` sequence, if that is
    more, so that one can be read while another is written, but then at most half.
    """
    return max(LEAST_SLOTS, num_blocks // 8, min(2 * longest, num_blocks // 2))


def _slots(config: EngineConfig, info: EngineInfo, num_blocks: int, block_bytes: int) -> int:
    if config.kv_offloading_size is None:
        return staging_slots(num_blocks, -(-info.max_model_len // info.block_size))
    slots = int(config.kv_offloading_size * GIB) // block_bytes
    if slots < LEAST_SLOTS:
        least = LEAST_SLOTS * block_bytes / GIB
        raise UnusableTier(f"--kv-offloading-size: blocks of this model need {least:.3g} GiB")
    return slots


def _name(info: EngineInfo, memory: KvMemory) -> str:
    """The name of the folder for such blocks; differs by weights, dtype and shape."""
    layout = LAYOUT, info.fingerprint, info.kv_dtype, info.block_size, memory.shape
    return blake2b(repr(layout).encode(), digest_size=16).hexdigest()
