"""Whole experts on each rank, multiplied in one piece as on a GPU, say what one rank says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory
from engine.attention.paged import Span
from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.placement import Placement
from engine.checkpoints.storage import LinearFactory
from engine.kernels.products import TorchProducts
from engine.models.choosing import load_model, read_config
from engine.models.decoder import Decoder
from engine.models.experts import SparseMlp, StackedExperts
from engine.models.tensor_parallel import ParallelMlp
from engine.sharding.group import RankGroup
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits
from tests.fakes.mixture_shapes import MIXTURE_SHAPE
from tests.fakes.mixtures import pack_mxfp4, stack_experts
from tests.unit.test_group import together

TOKENS, BLOCK = prompt(40), 16
CPU = torch.device("cpu")
STACKS = [one for one in MIXTURE_SHAPE if one != "gpt_oss"]


def part_of(folder: Path, group: RankGroup) -> Decoder:
    """A rank's, with its experts in one piece of memory."""
    checkpoint = open_checkpoint(str(folder))
    place = Placement(torch.float32, CPU, group=group, storage=LinearFactory(TorchProducts()))
    model = load_model(checkpoint, read_config(checkpoint, "auto"), len(TOKENS), place)
    assert isinstance(model, Decoder)
    return model


def experts_of(model: Decoder) -> list[int]:
    """How many are here, of each layer that has any."""
    parts = [layer.mlp.ours for layer in model.layers if isinstance(layer.mlp, ParallelMlp)]
    routed = [part.experts for part in parts if isinstance(part, SparseMlp)]
    assert all(isinstance(one, StackedExperts) for one in routed)
    return [one.gate_up.weight.shape[0] for one in routed if isinstance(one, StackedExperts)]


def said(folder: Path, group: RankGroup) -> tuple[list[int], Tensor]:
    """One rank's experts, and the logits of all of TOKENS."""
    model = part_of(folder, group)
    blocks = range(-(-len(TOKENS) // BLOCK))
    memory = KvMemory(model.kv_shape, len(blocks), BLOCK, torch.float32, CPU)
    batch = AttentionBatch(memory, [], [Span(0, len(TOKENS), blocks)])
    with torch.inference_mode():
        return experts_of(model), model.logits(model.forward(torch.tensor(TOKENS), batch))


def assert_ranks_say_what_one_says(folder: Path, ranks: int) -> None:
    exact = prompt_logits(load(folder), TOKENS, len(TOKENS))
    whole = read_config(open_checkpoint(str(folder)), "auto")
    for here, logits in together(ranks, lambda group: said(folder, group)):
        assert here
        assert set(here) == {whole.experts.routing.num_experts // ranks}  # type: ignore[union-attr]
        torch.testing.assert_close(logits, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", [one for one in MIXTURE_SHAPE if one != "qwen2_moe"])
def test_every_family(family: str, ranks: int, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, family)
    assert_ranks_say_what_one_says(tmp_path, ranks)


def test_six_experts_over_three_ranks(tmp_path: Path) -> None:
    shape: dict[str, Any] = {
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "hidden_size": 48,
        "shared_expert_intermediate_size": 42,
    }
    make_checkpoint(tmp_path, "qwen2_moe", **shape)
    assert_ranks_say_what_one_says(tmp_path, 3)


@pytest.mark.parametrize("family", STACKS)
def test_experts_that_are_stored_in_one_tensor(family: str, tmp_path: Path) -> None:
    stack_experts(make_checkpoint(tmp_path, family))
    assert_ranks_say_what_one_says(tmp_path, 2)


def test_experts_of_gpt_oss_in_four_bits(tmp_path: Path) -> None:
    """With its biases, which each rank has for its own experts only."""
    plain, packed = make_checkpoint(tmp_path / "plain", "gpt_oss"), tmp_path / "packed"
    pack_mxfp4(plain, packed)
    assert_ranks_say_what_one_says(packed, 2)
