"""States that several ranks share out, as they share out key heads."""

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from engine.errors import UnusableCheckpoint
from engine.models.config import parse_config
from engine.ranks.opening import refuse_ranks
from engine.request import Sampling
from engine.settings import EngineConfig
from engine.state_settings import settings_for
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import hand_over, load, prompt, requests, run
from tests.fakes.ranks import ranked

PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64, 90)]
GREEDY = Sampling(max_tokens=20, temperature=0, ignore_eos=True)
HALF, NOT_A_NUMBER = torch.bfloat16, 0xFF


@pytest.fixture(scope="module")
def deltas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("deltas"), "qwen3_5_text")


def test_each_rank_hands_over_its_part_of_a_state(deltas: Path) -> None:
    asked = requests(PROMPTS, GREEDY)
    settings: dict[str, Any] = {"block_size": 3}  # which both ranks multiply
    with (
        ranked(deltas, 2, max_num_batched_tokens=16, **settings) as source,
        ranked(deltas, 2, **settings) as sink,
    ):
        for region in (*source.kv_regions, *sink.kv_regions):
            ctypes.memset(region.at(0), NOT_A_NUMBER, region.block_bytes * region.num_blocks)
        assert hand_over(source, sink, asked) == run(load(deltas), asked)


@pytest.mark.parametrize(
    ("family", "ranks", "why"),
    [
        ("qwen3_5_text", 4, "2 key heads of layers with a state do not"),
        ("bamba", 4, "2 key heads of layers with a state do not"),
    ],
)
def test_states_that_do_not_share_out_are_named(
    tmp_path: Path, family: str, ranks: int, why: str
) -> None:
    folder = make_checkpoint(tmp_path, family)
    with pytest.raises(UnusableCheckpoint, match=f"--tensor-parallel-size {ranks}: {why}"):
        refuse_ranks(EngineConfig(model=str(folder), tensor_parallel_size=ranks))


def test_ranks_of_fewer_kv_heads_have_smaller_blocks(deltas: Path) -> None:
    """Each has a KV head of its own, and half a state."""
    shape = parse_config(json.loads((deltas / "config.json").read_text()))
    shape = structs.replace(shape, num_kv_heads=1)
    one, two = (
        settings_for(
            EngineConfig(model="", block_size=1, tensor_parallel_size=ranks), shape, HALF
        )
        for ranks in (1, 2)
    )
    assert (one.block_size, two.block_size) == (50, 25)
