"""Randomness without state: a token's noise is a function of its seed and position.

`gumbel` gives every (key, vocabulary entry) a standard Gumbel variate; adding it to logits
and taking the largest samples from their softmax (the Gumbel-max trick). The key is made of
(seed, sample_index, position) alone, so the same token is sampled in any batch, on any node,
after any retry. The bits come from engine/kernels/mixing.py, applied twice with half of the
key each time.
"""

from hashlib import blake2b

import torch
from torch import Tensor

from engine.kernels.mixing import GOLDEN, MASK, mix, signed, uniform

CACHED_ENTRIES = 1 << 16  # a tile that stays in a core's cache; on a GPU calls cost more
TILE_ENTRIES = 1 << 24


def noise_key(seed: int, sample_index: int, position: int) -> tuple[int, int]:
    """The key of one draw, as two 32-bit halves."""
    name = f"{seed}/{sample_index}/{position}".encode()
    digest = int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
    return digest & MASK, digest >> 32


def add_gumbel(logits: Tensor, keys: Tensor) -> None:
    """Add the noise of `keys` [rows, 2] to `logits` [rows, vocabulary] float32 in place."""
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
    bits = entries.to(torch.int32) * signed(GOLDEN) ^ halves[:, :1]
    spare = torch.empty_like(bits)
    mix(bits, spare)
    bits ^= halves[:, 1:]
    mix(bits, spare)
    return uniform(bits).log_().neg_().log_().neg_()
