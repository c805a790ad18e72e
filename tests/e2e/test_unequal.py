"""Two nodes whose KV blocks have different sizes say what one of them says."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import running
from tests.fakes.driver import prompt

LENGTHS = [1, 15, 16, 17, 31, 32, 33, 64, 100]
PROMPTS = [prompt(length) for length in LENGTHS]
LONGER = [(*asked, *prompt(20, seed=7)) for asked in PROMPTS]  # they begin as the others
ANSWER = 12


@pytest.mark.parametrize(
    ("connector", "prefill", "decode"), [("nixl", 16, 32), ("tcp", 32, 16)]
)
async def test_split_is_unsplit(tiny: Path, connector: str, prefill: int, decode: int) -> None:
    """Pain 30; the second round finds the first one's KV in decode's cache."""
    options = {"--block-size": str(decode)}
    settings: dict[str, Any] = {
        "kv_connector": connector,
        "block_size": prefill,
        "kv_checksum": "full",
    }
    async with running(tiny, decode_options=options, **settings) as cluster:
        layouts = await cluster.layouts()
        for prompts in (PROMPTS, LONGER):
            await cluster.split_is_unsplit(prompts, ANSWER)
        await cluster.blocks_come_back()
    sizes = {role: layout["block_size"] for role, layout in layouts.items()}
    assert sizes == {"prefill": prefill, "decode": decode}
