"""The noise is Gumbel's, and a function of what names it."""

import math
from hashlib import blake2b

import pytest
import torch
from torch import Tensor

from engine.sampling.noise import CACHED_ENTRIES, add_gumbel, gumbel, noise_key

EULER_GAMMA = 0.5772
WORD = 0xFFFF_FFFF


def noise_of(keys: Tensor, vocabulary: int) -> Tensor:
    return gumbel(keys, torch.arange(vocabulary))


def obvious(key: tuple[int, int], entry: int) -> float:
    """One number, in plain integers."""

    def mix(bits: int) -> int:
        bits = (bits ^ bits >> 16) * 0x85EB_CA6B & WORD
        bits = (bits ^ bits >> 13) * 0xC2B2_AE35 & WORD
        return bits ^ bits >> 16

    bits = mix(mix(entry * 0x9E37_79B9 & WORD ^ key[0]) ^ key[1])
    return -math.log(-math.log(((bits >> 9) + 0.5) / 2**23))


def test_lanes_of_32_bits_hold_what_plain_integers_say() -> None:
    """The bits are a contract: nodes of a cluster have to agree on them."""
    names = [noise_key(seed, 0, seed * seed) for seed in range(10)]
    keys = [*names, (0, 0), (WORD, WORD), (0x8000_0000, 0x7FFF_FFFF)]
    entries = [0, 1, 2, 77, 151_935, 2**31 - 1]
    noise = gumbel(torch.tensor(keys), torch.tensor(entries))
    wanted = torch.tensor([[obvious(key, entry) for entry in entries] for key in keys])
    torch.testing.assert_close(noise, wanted, atol=2e-6, rtol=2e-6)


def test_a_key_is_both_halves_of_a_digest_of_its_name() -> None:
    """It is as much a contract: a node of another version draws the same tokens."""
    for name in [(0, 0, 0), (7, 1, 5), (2**64 - 1, 3, 40_000)]:
        low, high = noise_key(*name)
        digest = blake2b("{}/{}/{}".format(*name).encode(), digest_size=8).digest()
        assert low.to_bytes(4, "little") + high.to_bytes(4, "little") == digest


def test_entries_can_be_anothers_for_each_row() -> None:
    keys = torch.tensor([noise_key(0, 0, position) for position in range(3)])
    ids = torch.tensor([[5, 900, 0], [1, 1, 2], [77, 3, 999]])
    assert torch.equal(gumbel(keys, ids), noise_of(keys, 1000).gather(1, ids))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("vocabulary", [1, CACHED_ENTRIES, 2 * CACHED_ENTRIES + 7])
def test_tiles_make_a_whole(rows: int, vocabulary: int) -> None:
    keys = torch.tensor([noise_key(0, 0, position) for position in range(rows)])
    logits = torch.linspace(-3, 3, rows * vocabulary).view(rows, vocabulary)
    expected = logits + noise_of(keys, vocabulary)
    add_gumbel(logits, keys)
    assert torch.equal(logits, expected)


def test_only_seed_index_and_position_make_the_noise() -> None:
    names = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 + 1, 0, 0), (11, 1, 1)]
    keys = torch.tensor([noise_key(*name) for name in names])
    noise = noise_of(keys, 1000)
    for row, key in zip(noise, keys, strict=True):
        assert torch.equal(noise_of(key.unsqueeze(0), 1000)[0], row)
        assert torch.equal(noise_of(key.unsqueeze(0), 50)[0], row[:50])
    agreement = (noise.unsqueeze(0) == noise.unsqueeze(1)).float().mean(2)
    assert (agreement - torch.eye(len(names))).max() < 0.01


def test_both_halves_of_the_key_count() -> None:
    noise = noise_of(torch.tensor([(1, 2), (2, 1), (0, 3), (3, 0), (1, 0), (0, 1)]), 1000)
    agreement = (noise.unsqueeze(0) == noise.unsqueeze(1)).float().mean(2)
    assert (agreement - torch.eye(len(noise))).max() < 0.01


def test_the_smallest_noise_is_finite() -> None:
    """Key and entry 0 are what the mixer leaves as they are: the first of the 2^23 cells."""
    (smallest,) = noise_of(torch.tensor([(0, 0)]), 1)[0].tolist()
    assert smallest == pytest.approx(-math.log(24 * math.log(2)))


def test_the_noise_is_gumbel() -> None:
    keys = torch.tensor([noise_key(0, 0, position) for position in range(200)])
    noise = noise_of(keys, 1000).double()
    assert noise.isfinite().all()
    assert abs(noise.mean() - EULER_GAMMA) < 0.01
    assert abs(noise.var() - math.pi**2 / 6) < 0.03
    for axis in (0, 1):  # neighbours know nothing of each other
        shifted = noise.roll(1, axis) - noise.mean()
        assert abs((shifted * (noise - noise.mean())).mean()) < 0.02
