"""Bitmasks of tokens: what libraries fill and kernels read, whatever the bits are."""

import pytest
import torch

from engine.sampling.masks import apply_bitmask, bitmask_of, empty_bitmask


def test_every_byte_of_a_mask_allows_the_tokens_of_its_bits() -> None:
    """Also where all eight may come, as they all may in reasoning."""
    logits = torch.zeros((1, 8 * 256))
    bits = torch.arange(256, dtype=torch.uint8).view(torch.int32)
    apply_bitmask(logits, [0], bits.view(1, -1))
    allowed = [[byte >> bit & 1 == 1 for bit in range(8)] for byte in range(256)]
    assert logits.isfinite().view(256, 8).tolist() == allowed


@pytest.mark.parametrize(
    ("vocabulary", "words"), [(1, 1), (32, 1), (33, 2), (64, 2), (992, 31)]
)
def test_a_word_has_32_tokens(vocabulary: int, words: int) -> None:
    assert empty_bitmask(3, vocabulary).shape == (3, words)
    last = bitmask_of([vocabulary - 1], vocabulary).tolist()
    bit = 1 << (vocabulary - 1) % 32
    assert last == [0] * (words - 1) + [bit - (1 << 32 if bit == 1 << 31 else 0)]
