"""Two nodes that keep KV in fp8 say what one of them says, and move one byte a number."""

from pathlib import Path
from shutil import copytree
from typing import Any

from tests.e2e.cluster import running, stage
from tests.fakes.driver import prompt
from tests.fakes.kv_scales import add_scales

PROMPTS = [prompt(length) for length in (1, 16, 17, 33, 64, 100)]
LONGER = [(*asked, *prompt(20, seed=7)) for asked in PROMPTS]  # they begin as the others
ANSWER = 12


async def test_split_is_unsplit(tiny: Path, tmp_path: Path) -> None:
    """With blocks of unequal sizes, and scales in the checkpoint; decode's cache has what the
    second round begins with.
    """
    folder = add_scales(copytree(tiny, tmp_path / "model"))
    options = {"--block-size": "32"}
    settings: dict[str, Any] = {
        "kv_connector": "nixl",
        "kv_cache_dtype": "fp8",
        "kv_checksum": "full",
    }
    async with running(folder, decode_options=options, block_size=16, **settings) as cluster:
        layouts = await cluster.layouts()
        for prompts in (PROMPTS, LONGER):
            await cluster.split_is_unsplit(prompts, ANSWER)
        moved = await cluster.complete(prompt(64, seed=5), max_tokens=ANSWER)
        await cluster.blocks_come_back()
    assert {layout["dtype"] for layout in layouts.values()} == {"float8_e4m3fn"}
    shape = layouts["prefill"]
    numbers = shape["layers"] * shape["parts"] * shape["kv_heads"] * shape["head_dim"]
    assert stage(moved, "transfer")["num_bytes"] == 64 * numbers
