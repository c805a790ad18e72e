"""Blocks on disk: what was written is read, and what is damaged in any way is not there."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from engine.tiers.slab import ENTRY, HEAD_BYTES, PAGE, Slab

SIZE = 5000
STRIDE = 2 * PAGE
ROOT = Path(__file__).parents[2]


def block(seed: int) -> memoryview:
    return memoryview(np.random.default_rng(seed).bytes(SIZE))


def key(seed: int) -> bytes:
    return seed.to_bytes(16, "little")


def opened(path: Path, *, places: int = 8, name: str = "model") -> Slab:
    return Slab.open(path, name, SIZE, places * STRIDE)


def read(slab: Slab, seed: int, place: int) -> bool:
    """Whether it is there; if so, as it was written."""
    into = memoryview(bytearray(SIZE))
    there = slab.read(key(seed), place, into)
    assert not there or into == block(seed)
    return there


def filled(path: Path, count: int = 3) -> Path:
    """A slab with so many blocks, that nobody uses any more; its folder."""
    slab = opened(path)
    for n in range(count):
        slab.write(key(n), n, block(n))
    slab.close()
    return slab.folder


def flip(at: int) -> Callable[[bytearray], None]:
    def damage(content: bytearray) -> None:
        content[at] ^= 1

    return damage


def cut(at: int) -> Callable[[bytearray], None]:
    def damage(content: bytearray) -> None:
        del content[at:]

    return damage


def zero(start: int, end: int) -> Callable[[bytearray], None]:
    def damage(content: bytearray) -> None:
        content[start:end] = bytes(end - start)

    return damage


def swap(content: bytearray) -> None:
    content[STRIDE : 2 * STRIDE] = content[2 * STRIDE : 3 * STRIDE].ljust(STRIDE, b"\0")


AT = STRIDE  # of place 1
IN_PLACE = {
    "magic": 0,
    "key": 8,
    "length": 24,
    "checksum of the bytes": 32,
    "checksum of the head": 40,
    "rest of the head": HEAD_BYTES - 1,
    "first byte": HEAD_BYTES,
    "middle": HEAD_BYTES + SIZE // 2,
    "last byte": HEAD_BYTES + SIZE - 1,
}
DAMAGES = {
    **{f"flipped {what}": flip(AT + at) for what, at in IN_PLACE.items()},
    **{f"cut at {what}": cut(AT + at) for what, at in IN_PLACE.items()},
    "cut before it": cut(AT - 1),
    "nothing left": cut(0),
    "a page was never written": zero(AT + PAGE, AT + HEAD_BYTES + SIZE),
    "only the bytes were written": zero(AT, AT + HEAD_BYTES),
    "another's block lies there": swap,
}


def test_a_restart_finds_the_blocks_again(tmp_path: Path) -> None:
    filled(tmp_path)
    slab = opened(tmp_path)
    assert slab.known() == [(key(n), n) for n in range(3)]
    assert all(read(slab, n, n) for n in range(3))
    slab.close()


def test_what_was_used_last_is_still_known_to_be_after_restarts(tmp_path: Path) -> None:
    filled(tmp_path)
    slab = opened(tmp_path)
    slab.known()
    assert read(slab, 0, 0)
    slab.close()
    again = opened(tmp_path)
    assert [place for _, place in again.known()] == [1, 2, 0]
    assert read(again, 1, 1)
    again.close()
    assert [place for _, place in opened(tmp_path).known()] == [2, 0, 1]


def test_uses_of_one_run_are_known_in_their_order(tmp_path: Path) -> None:
    slab = opened(tmp_path)
    for n in range(3):
        slab.write(key(n), n, block(n))
    assert all(read(slab, n, n) for n in (1, 0))
    slab.close()
    assert [place for _, place in opened(tmp_path).known()] == [2, 1, 0]


def test_a_key_that_lies_at_two_places_is_known_at_the_later_one(tmp_path: Path) -> None:
    """As after a crash before the first was overwritten; its older use does not count."""
    slab = opened(tmp_path)
    for place, n in enumerate((0, 1, 0)):
        slab.write(key(n), place, block(n))
    slab.close()
    assert opened(tmp_path).known() == [(key(1), 1), (key(0), 2)]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_block_is_a_miss_and_removed(
    tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    file = filled(tmp_path) / "blocks"
    content = bytearray(file.read_bytes())
    damage(content)
    file.write_bytes(content)
    slab = opened(tmp_path)
    slab.known()
    assert not read(slab, 1, 1)
    slab.close()
    assert key(1) not in dict(opened(tmp_path).known())


@pytest.mark.parametrize("at", range(ENTRY.size))
def test_a_damaged_entry_hides_its_block_only(tmp_path: Path, at: int) -> None:
    file = filled(tmp_path) / "index"
    content = bytearray(file.read_bytes())
    content[ENTRY.size + at] ^= 1
    file.write_bytes(content)
    assert opened(tmp_path).known() == [(key(0), 0), (key(2), 2)]


@pytest.mark.parametrize("left", [0, 1, ENTRY.size - 1, ENTRY.size, 2 * ENTRY.size + 5])
def test_a_cut_index_knows_what_is_whole(tmp_path: Path, left: int) -> None:
    file = filled(tmp_path) / "index"
    file.write_bytes(file.read_bytes()[:left])
    whole = left // ENTRY.size
    assert opened(tmp_path).known() == [(key(n), n) for n in range(whole)]


def test_an_index_of_another_slab_says_nothing_wrong(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    slab = opened(tmp_path / "other")
    for n in range(3):
        slab.write(key(n + 1), n, block(n + 1))
    slab.close()
    (folder / "index").write_bytes((slab.folder / "index").read_bytes())
    mixed = opened(tmp_path)
    assert not any(read(mixed, int.from_bytes(k, "little"), at) for k, at in mixed.known())


def test_a_smaller_size_cuts_what_is_beyond_it(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    slab = opened(tmp_path, places=2)
    assert slab.known() == [(key(0), 0), (key(1), 1)]
    assert (folder / "blocks").stat().st_size <= 2 * STRIDE


LARGE = 1 << 20
WRITER = f"""
import sys
from hashlib import blake2b
from pathlib import Path
import numpy as np
from engine.tiers.slab import Slab
slab = Slab.open(Path(sys.argv[1]), "model", {LARGE}, {8 * (LARGE + PAGE)})
slab.known()
random = np.random.default_rng()
while True:
    for place in range(8):
        block = memoryview(random.bytes({LARGE}))
        slab.write(blake2b(block, digest_size=16).digest(), place, block)
        print(place, flush=True)
"""


def test_killed_while_it_writes_it_leaves_whole_blocks_or_none(tmp_path: Path) -> None:
    """Each key is the hash of its block. Blocks are large, so that kills hit in the middle."""
    found, into = 0, memoryview(bytearray(LARGE))
    for kills in range(6):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as writer:
            assert writer.stdout
            for _ in range(9 + kills):
                writer.stdout.readline()
            os.kill(writer.pid, signal.SIGKILL)
        slab = Slab.open(tmp_path, "model", LARGE, 8 * (LARGE + PAGE))
        for name, place in slab.known():
            if slab.read(name, place, into):
                assert blake2b(into, digest_size=16).digest() == name
                found += 1
        slab.close()
    assert found >= 6 * 6


@pytest.mark.parametrize(("pages", "places"), [(0, [0]), (2, [0, 1]), (3, [0, 1])])
def test_places_that_were_cut_off_are_not_known(
    tmp_path: Path, pages: int, places: list[int]
) -> None:
    """Except the last one, of which a part may be there."""
    folder = filled(tmp_path)
    os.truncate(folder / "blocks", pages * PAGE)
    slab = opened(tmp_path)
    assert [place for _, place in slab.known()] == places
    slab.close()


def test_a_size_that_no_disk_has_costs_nothing(tmp_path: Path) -> None:
    """As `--kv-disk-size 1e26` asks: the index is read as far as it was written."""
    filled(tmp_path)
    slab = Slab.open(tmp_path, "model", SIZE, 10**35)
    assert [place for _, place in slab.known()] == [0, 1, 2]
    slab.close()
