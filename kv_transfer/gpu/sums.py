"""64-bit XXH3 checksums (Yann Collet's xxHash) of blocks on a device; only the sums leave it.

XXH3's eight lanes are sums within a kilobyte, so one launch reads all kilobytes of all blocks
once and sums them in parallel (`_sum`). Between two kilobytes the lanes are scrambled, which is
sequential: a second launch goes through the 64 bytes that remain of each kilobyte, with one
program for each block (`_chain`). Input comes in lines of 64 bytes, contiguous or a stride
apart; that is XXH3's own width. Equal to kv_transfer/integrity/checksums.py, its twin on the
host.
"""

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

WORD_BYTES, LINE_WORDS, LINES = 8, 8, 16  # lines of a kilobyte
LINE_BYTES = LINE_WORDS * WORD_BYTES
KILOBYTES = 4  # of a program
FIRST_PRIME = 0x9E3779B185EBCA87
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
START = (
    0xC2B2AE3D,
    FIRST_PRIME,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x85EBCA77,
    0x27D4EB2F165667C5,
    0x9E3779B1,
)
# where in the table of words each part of the secret begins
SCRAMBLE, LAST, MERGE, BEGIN = (tl.constexpr(one) for one in (16, 24, 32, 40))
SCRAMBLE_PRIME = tl.constexpr(0x9E3779B1)
LAST_PRIME = tl.constexpr(0x165667919E3779F9)


def sums(memory: Tensor, blocks: Sequence[int], lines: int, step_bytes: int) -> list[int]:
    """A checksum for each of `blocks` of `memory` [blocks, bytes] uint8, over `lines` lines of
    64 bytes, `step_bytes` apart. At least 4 lines: XXH3 has another algorithm up to 240 bytes.
    Waits for the device once, on the current stream.
    """
    if not blocks:
        return []
    found = launched(memory, blocks, lines, step_bytes).tolist()
    return [one & 0xFFFF_FFFF_FFFF_FFFF for one in found]


def launched(memory: Tensor, blocks: Sequence[int], lines: int, step_bytes: int) -> Tensor:
    """The same, signed, as [n] int64 on the device; does not wait."""
    words = memory.view(torch.int64)
    device = memory.device
    ids = torch.tensor(blocks, dtype=torch.int64).to(device, non_blocking=True)
    table = _table_on(device)
    kilobytes = (lines - 1) // LINES
    parts = torch.empty(
        (len(blocks), kilobytes + 1, LINE_WORDS), dtype=torch.int64, device=device
    )
    found = torch.empty(len(blocks), dtype=torch.int64, device=device)
    shape = words.stride(0), step_bytes // WORD_BYTES, lines
    _sum[(triton.cdiv(kilobytes + 1, KILOBYTES), len(blocks))](
        words, ids, table, parts, *shape, kilobytes + 1,
        LANES=LINE_WORDS, LINES_=LINES, KILOBYTES_=KILOBYTES, num_warps=4,
    )  # fmt: skip
    size = _signed(lines * LINE_BYTES * FIRST_PRIME)
    _chain[(len(blocks),)](
        words, ids, table, parts, found, *shape, kilobytes, size, LANES=LINE_WORDS, num_warps=1
    )
    return found


def bytes_moved(blocks: int, lines: int) -> int:
    """The minimum memory traffic: every line is read once, and each sum is written once."""
    return blocks * (lines * LINE_BYTES + WORD_BYTES)


def operations(blocks: int, lines: int) -> int:
    """The minimum: an exclusive or, a product of halves and two additions for each word."""
    return blocks * lines * LINE_WORDS * 4


@cache
def _table_on(device: torch.device) -> Tensor:
    """`_table` on a device: copied there once, and complete when this returns."""
    return torch.tensor(_table(), dtype=torch.int64).to(device)


def _table() -> list[int]:
    """Words of the secret: all, for the last line, for the end; then the initial lanes."""

    def words(start: int, count: int) -> list[int]:
        places = range(start, start + WORD_BYTES * count, WORD_BYTES)
        return [int.from_bytes(SECRET[at : at + WORD_BYTES], "little") for at in places]

    table = [*words(0, 24), *words(len(SECRET) - LINE_BYTES - 7, 8), *words(11, 8), *START]
    return [_signed(one) for one in table]


def _signed(word: int) -> int:
    word &= 0xFFFF_FFFF_FFFF_FFFF
    return word - (word >> 63 << 64)


@triton.jit
def _mixed(line, secret, lane):
    """What a line adds to its lanes: the neighbouring word, and a product of halves."""
    own = tl.load(line + lane).to(tl.uint64, bitcast=True) ^ secret
    neighbour = tl.load(line + (lane ^ 1)).to(tl.uint64, bitcast=True)
    return neighbour + (own & 0xFFFFFFFF) * (own >> 32)


@triton.jit(do_not_specialize=["lines", "kilobytes"])
def _sum(
    words, ids, table, parts, stride, step, lines, kilobytes,
    LANES: tl.constexpr, LINES_: tl.constexpr, KILOBYTES_: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(1).to(tl.int64)
    block = words + tl.load(ids + index) * stride
    number = tl.program_id(0) * KILOBYTES_ * LINES_ + tl.arange(0, KILOBYTES_ * LINES_)
    lane = tl.arange(0, LANES)[None, :]
    inside = number < lines - 1  # the last line is handled in _chain
    line = block + tl.where(inside, number, 0).to(tl.int64)[:, None] * step
    secret = tl.load(table + number[:, None] % LINES_ + lane).to(tl.uint64, bitcast=True)
    made = tl.where(inside[:, None], _mixed(line, secret, lane), 0).to(tl.uint64)
    total = tl.sum(tl.reshape(made, [KILOBYTES_, LINES_, LANES]), axis=1)
    kilobyte = tl.program_id(0) * KILOBYTES_ + tl.arange(0, KILOBYTES_)[:, None]
    place = parts + (index * kilobytes + kilobyte) * LANES + lane
    tl.store(place, total.to(tl.int64, bitcast=True), mask=kilobyte < kilobytes)


@triton.jit(do_not_specialize=["lines", "kilobytes", "size"])
def _chain(
    words, ids, table, parts, found, stride, step, lines, kilobytes, size, LANES: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    lanes = tl.load(table + BEGIN + lane).to(tl.uint64, bitcast=True)
    scramble = tl.load(table + SCRAMBLE + lane).to(tl.uint64, bitcast=True)
    part = parts + index * (kilobytes + 1) * LANES + lane
    ahead = tl.load(part).to(tl.uint64, bitcast=True)
    for kilobyte in range(kilobytes):
        lanes += ahead
        ahead = tl.load(part + (kilobyte + 1) * LANES).to(tl.uint64, bitcast=True)
        lanes = (lanes ^ (lanes >> 47) ^ scramble) * SCRAMBLE_PRIME
    last = words + tl.load(ids + index) * stride + (lines - 1).to(tl.int64) * step
    secret = tl.load(table + LAST + lane).to(tl.uint64, bitcast=True)
    lanes += ahead + _mixed(last, secret, lane)
    lanes ^= tl.load(table + MERGE + lane).to(tl.uint64, bitcast=True)
    one, other = tl.split(tl.reshape(lanes, [LANES // 2, 2]))
    folded = one * other ^ tl.umulhi(one, other)
    total = tl.sum(folded, axis=0) + size.to(tl.uint64)
    total = (total ^ (total >> 37)) * LAST_PRIME
    total = total ^ (total >> 32)
    tl.store(found + index, total.to(tl.int64, bitcast=True))
