"""With experts and latents, too, nothing but the request decides its tokens."""

from pathlib import Path

import pytest
import torch

from engine.request import Sampling
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run

PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64, 90)]
SEEDED = Sampling(max_tokens=20, temperature=0.9, top_p=0.95, seed=11, ignore_eos=True)
FAMILIES = ["mixtral", "gpt_oss", "deepseek_v2", "deepseek_v3", "glm4_moe", "minimax_m2"]
Checkpoint = tuple[Path, list[list[int]]]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    """And what each request says when it is the only one, its prompt in one piece."""
    folder = make_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    engine = load(folder, enable_prefix_caching=False)
    return folder, [run(engine, [one])[0] for one in requests(PROMPTS, SEEDED)]


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_is_undisturbed(checkpoint: Checkpoint, prefix_cache: bool) -> None:
    folder, alone = checkpoint
    token_bytes = load(folder, block_size=1).kv_regions[0].block_bytes
    engine = load(
        folder,
        max_model_len=110,
        block_size=4,
        kv_cache_memory_bytes=112 * token_bytes,
        enable_prefix_caching=prefix_cache,
    )
    assert run(engine, requests(PROMPTS, SEEDED)) == alone
    assert engine.load.preemptions > 0


@pytest.mark.parametrize("chunk", [1, 7, 33])
def test_any_chunks_any_batch(checkpoint: Checkpoint, chunk: int) -> None:
    folder, alone = checkpoint
    engine = load(folder, max_num_batched_tokens=chunk, block_size=5)
    assert run(engine, requests(PROMPTS, SEEDED)) == alone
    whole = prompt_logits(engine, PROMPTS[-1], len(PROMPTS[-1]))
    torch.testing.assert_close(
        prompt_logits(engine, PROMPTS[-1], chunk), whole, atol=1e-4, rtol=1e-4
    )


def test_latents_are_all_that_is_kept(tmp_path: Path) -> None:
    """One row of rank and rotated part for each token and layer, whatever the heads."""
    engine = load(make_checkpoint(tmp_path, "deepseek_v3"), block_size=16)
    (region,) = engine.kv_regions
    assert region.block_bytes == 2 * 16 * (16 + 8) * 4
    assert engine.info.kv_heads == 1


def test_without_kernels_it_is_the_same(checkpoint: Checkpoint) -> None:
    folder, alone = checkpoint
    assert run(load(folder, cpu_kernels="torch"), requests(PROMPTS, SEEDED)) == alone
