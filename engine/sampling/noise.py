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
UNIFORM_BITS = 23  # the midpoints of 2^23 cells are exact in float32, and never 0 or 1


def noise_key(seed: int, sample_index: int, position: int) -> tuple[int, int]:
    """Two 32-bit halves that name one draw."""
    name = f"{seed}/{sample_index}/{position}".encode()
    digest = int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
    return digest & MASK, digest >> 32


def gumbel(keys: Tensor, vocabulary: int) -> Tensor:
    """[rows, 2] int64 keys to [rows, vocabulary] float32 standard Gumbel noise."""
    first, second = keys[:, :1], keys[:, 1:]
    entries = torch.arange(vocabulary, dtype=torch.int64, device=keys.device)
    bits = _mix(_mix((entries * GOLDEN & MASK) ^ first) ^ second)
    cells = (bits >> (32 - UNIFORM_BITS)).to(torch.float32)
    uniform = (cells + 0.5) * 2.0**-UNIFORM_BITS
    return uniform.log_().neg_().log_().neg_()


def _mix(bits: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser on int64 lanes that hold 32 bits each."""
    bits = (bits ^ (bits >> 16)) * 0x85EB_CA6B & MASK
    bits = (bits ^ (bits >> 13)) * 0xC2B2_AE35 & MASK
    return bits ^ (bits >> 16)
