"""The compiled kernel draws what plain torch draws."""

import pytest
import torch

from engine.kernels.cpu.native import CpuKernels
from engine.sampling.noise import add_gumbel


@pytest.mark.parametrize("vocabulary", [1, 15, 16, 17, 1000, 151_936])
@pytest.mark.parametrize("spread", [0.0, 1.0, 40.0])
def test_tokens_are_those_of_the_twin(
    vocabulary: int, spread: float, kernels: CpuKernels
) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(5, vocabulary + 3, generator=generator)[:, :vocabulary] * spread
    keys = torch.randint(0, 1 << 32, (5, 2), generator=generator)
    expected = logits.clone()
    add_gumbel(expected, keys)
    tokens = kernels.gumbel_argmax(logits, keys)
    chosen = expected.gather(1, tokens.unsqueeze(1))[:, 0]
    assert ((expected.amax(1) - chosen) < 1e-4).all()  # logarithms differ by some ulp


def test_where_nothing_is_left_it_is_the_first(kernels: CpuKernels) -> None:
    logits = torch.full((2, 40), -torch.inf)
    logits[1, 37] = -1e30
    assert kernels.gumbel_argmax(logits, torch.tensor([[1, 2], [3, 4]])).tolist() == [0, 37]


def test_noise_is_gumbels(kernels: CpuKernels) -> None:
    """How often the first of two is drawn follows from the difference of their logits."""
    draws = 4000
    keys = torch.randint(0, 1 << 32, (draws, 2), generator=torch.Generator().manual_seed(1))
    logits = torch.tensor([0.7, 0.0]).repeat(draws, 1)
    share = (kernels.gumbel_argmax(logits, keys) == 0).float().mean().item()
    expected = torch.tensor(0.7).sigmoid().item()
    assert abs(share - expected) < 4 * (expected * (1 - expected) / draws) ** 0.5
