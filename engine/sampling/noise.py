"""Randomness without state: a token's noise is a function of where it stands.

`gumbel` gives every (key, vocabulary entry) a standard Gumbel variate; adding it to logits
and taking the largest draws from their softmax (the Gumbel-max trick). The key is made of
(seed, sample_index, position) alone, so a token is drawn alike in any batch, on any node,
after any retry. The bits come from the finaliser of MurmurHash3 (Appleby), applied twice
with half of the key each time; it is a good mixer, not a cipher.
"""

from hashlib import blake2b

import torch
from torch import Tensor

MASK = 0xFFFF_FFFF
GOLDEN = 0x9E37_79B9
FIRST_FACTOR, SECOND_FACTOR = 0x85EB_CA6B, 0xC2B2_AE35
UNIFORM_BITS = 23  # the midpoints of 2^23 cells are exact in float32, and never 0 or 1
CACHED_ENTRIES = 1 << 16  # what of a tile stays in a core's cache; on a GPU calls cost more
TILE_ENTRIES = 1 << 24


def noise_key(seed: int, sample_index: int, position: int) -> tuple[int, int]:
    """Two 32-bit halves that name one draw."""
    name = f"{seed}/{sample_index}/{position}".encode()
    digest = int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
    return digest & MASK, digest >> 32


def add_gumbel(logits: Tensor, keys: Tensor) -> None:
    """Add to `logits` [rows, vocabulary] float32 in place the noise of `keys` [rows, 2]."""
    rows, vocabulary = logits.shape
    tile = CACHED_ENTRIES if logits.device.type == "cpu" else TILE_ENTRIES
    width = max(1, tile // rows)
    for start in range(0, vocabulary, width):
        part = logits[:, start : start + width]
        entries = torch.arange(start, start + part.shape[1], device=logits.device)
        part += gumbel(keys, entries)


def gumbel(keys: Tensor, entries: Tensor) -> Tensor:
    """[rows, 2] keys and [rows, n] or [n] vocabulary entries to [rows, n] float32 noise."""
    halves = keys.to(torch.int32)
    bits = entries.to(torch.int32) * _signed(GOLDEN) ^ halves[:, :1]
    spare = torch.empty_like(bits)
    _mix(bits, spare)
    bits ^= halves[:, 1:]
    _mix(bits, spare)
    _shifted(bits, 32 - UNIFORM_BITS, bits)
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-UNIFORM_BITS)
    return uniform.log_().neg_().log_().neg_()


def _mix(bits: Tensor, spare: Tensor) -> None:
    """MurmurHash3's 32-bit finaliser, in place. Products of int32 lanes wrap, as it wants."""
    bits ^= _shifted(bits, 16, spare)
    bits *= _signed(FIRST_FACTOR)
    bits ^= _shifted(bits, 13, spare)
    bits *= _signed(SECOND_FACTOR)
    bits ^= _shifted(bits, 16, spare)


def _shifted(bits: Tensor, count: int, out: Tensor) -> Tensor:
    """To the right, zeros from the left."""
    torch.bitwise_right_shift(bits, count, out=out)
    return out.bitwise_and_(MASK >> count)


def _signed(word: int) -> int:
    return word - (word >> 31 << 32)
