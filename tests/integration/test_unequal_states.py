"""Engines of unequal ranks or blocks, whose models keep a state, say what one of them says."""

import ctypes
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.torch_engine import TorchEngine
from kv_transfer.layout import can_pull
from node.identity import layout_of
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import GREEDY, assert_idle, load, prompt, requests, run
from tests.fakes.fetched import split
from tests.fakes.ranks import ranked

PROMPTS = [prompt(length) for length in (1, 13, 14, 15, 32, 33, 100)]
FOUR = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}  # of keys; of KV there are two
NOT_A_NUMBER = 0xFF


@dataclass(frozen=True)
class Case:
    """Ranks and --block-size of a prefill and of a decode node."""

    family: str
    ranks: tuple[int, int] = (1, 1)
    sizes: tuple[int, int] = (16, 16)
    shape: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "to more ranks": Case("qwen3_5_text", (1, 2)),
    "to fewer ranks": Case("qwen3_next", (2, 1)),
    "to more ranks than KV heads": Case("qwen3_next", (2, 4), (7, 7), FOUR),
    "from more ranks than KV heads": Case("qwen3_5_text", (4, 1), shape=FOUR),
    "Mamba-2 to more ranks": Case("bamba", (1, 2)),
    "Mamba-2 to fewer ranks": Case("nemotron_h", (2, 1)),
    "short convolutions to more ranks": Case("lfm2", (1, 2)),
    "short convolutions to other blocks": Case("lfm2_moe", (2, 1), (16, 24)),
    "side by side with attention": Case("falcon_h1", (1, 2)),
    "to larger blocks": Case("qwen3_5_text", sizes=(16, 64)),
    "to smaller blocks": Case("granitemoehybrid", sizes=(64, 16)),
    "to blocks that do not divide": Case("qwen3_5_text", sizes=(24, 16)),
    "and on fewer ranks": Case("qwen3_next", (2, 1), (20, 32)),
    "to larger blocks on more ranks": Case("qwen3_5_text", (1, 2), (16, 32)),
}


def opened(
    stack: ExitStack, folder: Path, ranks: int, settings: Mapping[str, Any]
) -> TorchEngine:
    """An engine whose memory holds nothing that could be right by chance."""
    if ranks == 1:
        engine = load(folder, **settings)
    else:
        engine = stack.enter_context(ranked(folder, ranks, **settings))
    for region in engine.kv_regions:
        ctypes.memset(region.at(0), NOT_A_NUMBER, region.block_bytes * region.num_blocks)
    return engine


@pytest.mark.parametrize("name", CASES)
def test_split_is_one_engine(tmp_path: Path, name: str) -> None:
    case, asked = CASES[name], requests(PROMPTS, GREEDY)
    folder = make_checkpoint(tmp_path, case.family, **case.shape)
    expected = [token for answer in run(load(folder), asked) for token in answer]
    (here, there), (small, large) = case.ranks, case.sizes
    with ExitStack() as stack:
        chunked = {"block_size": small, "max_num_batched_tokens": 24}
        source = opened(stack, folder, here, chunked)
        sink = opened(stack, folder, there, {"block_size": large})
        assert layout_of(source) != layout_of(sink)
        assert can_pull(layout_of(source), layout_of(sink)) is None
        assert split(source, sink, asked) == (0, expected)
        known, again = split(source, sink, asked)
        assert known > 0, "KV that is still there; states are read again"
        assert again == expected
        assert_idle(source)
        assert_idle(sink)
