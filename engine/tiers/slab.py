"""Blocks in one file of equal places, and a small index file.

    blocks   place 0 │ place 1 │ …    a place: a head, the bytes of one KV block, a gap
    index    entry 0 │ entry 1 │ …    an entry: key, when it was last used, checksum
    lock     held by the process that uses them

The index is only a hint, for a quick start. A place identifies itself, with checksums over head
and bytes, and both are checked on every read. So writes need no order and no flush: what a
crash leaves incomplete fails its checksum, and is treated as missing.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import Self

from xxhash import xxh3_64_intdigest as checksum

from engine.errors import UnusableTier

MAGIC = b"pdskv\x00\x00\x01"  # with the version of this format
HEAD = struct.Struct("<8s16sQQQ")  # magic, key, bytes, their checksum, the head's checksum
HEAD_BYTES = 64
ENTRY = struct.Struct("<16sQQ")  # key, last use, checksum
PAGE = 4096
MOST_AT_ONE_PATH = 64
OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
NOTHING = bytes(ENTRY.size)
FULL = ENOSPC, EDQUOT, EFBIG


class Slab:
    """`places` of `block_bytes` each. For one thread at a time.

    Errors raise OSError, also a full disk; corrupt data is a miss.
    """

    def __init__(self, folder: Path, block_bytes: int, places: int, lock: int) -> None:
        self.folder, self.block_bytes, self.places = folder, block_bytes, places
        self._stride = -(-(HEAD_BYTES + block_bytes) // PAGE) * PAGE
        self._lock = lock
        self._blocks = os.open(folder / "blocks", OPEN, 0o600)
        self._index = os.open(folder / "index", OPEN, 0o600)
        self._uses = 0

    @classmethod
    def open(cls, path: Path, name: str, block_bytes: int, size: int) -> Self:
        """The first slab under `name` at `path` that no process uses; made if there is none.

        It takes at most `size` bytes, plus 32 for each block. Raises UnusableTier.
        """
        places = size // (-(-(HEAD_BYTES + block_bytes) // PAGE) * PAGE)
        if places < 1:
            raise UnusableTier(f"--kv-disk-size: {size} bytes hold no block of {block_bytes}")
        try:
            folder, lock = _free_folder(path, name)
            return cls(folder, block_bytes, places, lock)
        except OSError as error:
            raise UnusableTier(f"--kv-disk-path {path}: {error}") from error

    def close(self) -> None:
        """Release the slab for other processes."""
        for file in (self._blocks, self._index, self._lock):
            os.close(file)

    def known(self) -> list[tuple[bytes, int]]:
        """Keys and places that an earlier run left, the least recently used first.

        Places beyond this run's size are cut off.
        """
        os.ftruncate(self._blocks, min(_size(self._blocks), self.places * self._stride))
        os.ftruncate(self._index, min(_size(self._index), self.places * ENTRY.size))
        found = sorted(self._entries())
        self._uses = found[-1][0] + 1 if found else 0
        latest = {key: place for _, key, place in found}
        return [(key, place) for _, key, place in found if latest[key] == place]

    def read(self, key: bytes, place: int, into: memoryview) -> bool:
        """Fill `into` [block_bytes]; False: the block is missing, and `into` is garbage."""
        head = bytearray(HEAD_BYTES)
        os.preadv(self._blocks, [head, into], place * self._stride)
        if head != _head(key, into):
            self._put_entry(NOTHING, place)
            return False
        self._enter(key, place)
        return True

    def write(self, key: bytes, place: int, block: memoryview) -> None:
        """Write a block, overwriting the place."""
        head = _head(key, block)
        count = os.pwritev(self._blocks, [head, block], place * self._stride)
        if count != len(head) + self.block_bytes:
            raise OSError(ENOSPC, "only part of a block was written")
        self._enter(key, place)

    def _enter(self, key: bytes, place: int) -> None:
        self._uses += 1
        self._put_entry(_entry(key, self._uses, place), place)

    def _put_entry(self, entry: bytes, place: int) -> None:
        """Update the index. Without room the old entry stays: the block itself is not affected.

        Some file systems need room even to overwrite.
        """
        try:
            os.pwrite(self._index, entry, place * ENTRY.size)
        except OSError as error:
            if error.errno not in FULL:
                raise

    def _entries(self) -> Iterator[tuple[int, bytes, int]]:
        """Last use, key and place of all valid entries whose place is in the file."""
        written = os.pread(self._index, _size(self._index), 0)
        there = _size(self._blocks) // self._stride + 1
        for place in range(min(there, len(written) // ENTRY.size)):
            at = place * ENTRY.size
            entry = written[at : at + ENTRY.size]
            key, used, _ = ENTRY.unpack(entry)
            if entry == _entry(key, used, place):
                yield used, key, place


def _head(key: bytes, block: memoryview) -> bytes:
    fields = MAGIC, key, len(block), checksum(block)
    said = HEAD.pack(*fields, checksum(HEAD.pack(*fields, 0)))
    return said.ljust(HEAD_BYTES, b"\0")


def _entry(key: bytes, used: int, place: int) -> bytes:
    return ENTRY.pack(key, used, checksum(ENTRY.pack(key, used, place)))


def _size(file: int) -> int:
    return os.fstat(file).st_size


def _free_folder(path: Path, name: str) -> tuple[Path, int]:
    """A folder that no process uses, and its lock, held until closed or the process ends."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make_ours(path / name)
    for number in range(MOST_AT_ONE_PATH):
        folder = path / name / str(number)
        _make_ours(folder)
        lock = os.open(folder / "lock", OPEN, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return folder, lock
    raise UnusableTier(f"--kv-disk-path {path}: {MOST_AT_ONE_PATH} other processes use it")


def _make_ours(folder: Path) -> None:
    """Make the folder private to this user: KV can reveal what users wrote."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UnusableTier(f"--kv-disk-path: {folder} is not a folder of our own")
    if found.st_mode & 0o077:
        raise UnusableTier(f"--kv-disk-path: {folder} is open to others; wanted: mode 0700")
