"""A cluster without a checkpoint's weights: random ones, the same on every node."""

import shutil
from pathlib import Path

from tests.e2e.cluster import running, stage, tokens_of
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import load, prompt, requests, run


async def test_nodes_with_made_up_weights_are_paired_and_agree(tmp_path: Path) -> None:
    real, folder = make_checkpoint(tmp_path / "real"), tmp_path / "dummy"
    shutil.copytree(real, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    asked = prompt(50)
    async with running(folder, load_format="dummy", seed=3) as cluster:
        answer = await cluster.complete(asked, max_tokens=16)
        await cluster.blocks_come_back()
    alone = run(load(folder, load_format="dummy", seed=3), requests([asked]))
    assert tokens_of(answer) == alone[0]
    assert stage(answer, "transfer")["num_bytes"] > 0
