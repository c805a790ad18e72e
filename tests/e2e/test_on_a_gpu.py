"""Two nodes on one GPU and a proxy, each a process: their KV moves between device memories."""

import asyncio
from pathlib import Path

import pytest
import torch

from tests.e2e.cluster import running, tokens_of
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import prompt
from tests.fakes.reference import Reference

CHUNK, ANSWER, DEVICE = 64, 12, "cuda:0"
LENGTHS = [1, 15, 16, 17, 33, 63, 64, 65, 100, 128, 129]
PROMPTS = [prompt(length) for length in LENGTHS]
KV_BYTES = 1 << 26


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA device")
@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3"])
def test_split_answers_are_those_of_a_single_node(tmp_path: Path, family: str) -> None:
    asyncio.run(_asked(make_checkpoint(tmp_path / family, family)))


async def _asked(folder: Path) -> None:
    settings = {"max_num_batched_tokens": CHUNK, "kv_cache_memory_bytes": KV_BYTES}
    on_the_device = {"prefill_devices": (DEVICE,), "decode_devices": (DEVICE,)}
    async with running(folder, **settings, **on_the_device) as cluster:
        await cluster.split_is_unsplit(PROMPTS, ANSWER)
        answers = await asyncio.gather(
            *(cluster.complete(asked, max_tokens=ANSWER) for asked in PROMPTS)
        )
        await cluster.blocks_come_back()
    said, reference = [tokens_of(answer) for answer in answers], Reference(folder)
    assert said == [
        reference.greedy(asked, tokens) for asked, tokens in zip(PROMPTS, said, strict=True)
    ]
