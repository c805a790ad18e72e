"""Weights of few bits are shared out among ranks with their scales, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.placement import Placement
from engine.checkpoints.storage import LinearFactory
from engine.errors import UnusableCheckpoint
from engine.kernels.products import TorchProducts
from engine.models.choosing import load_model, read_config
from engine.models.model import Model
from engine.ranks.opening import refuse_ranks
from engine.settings import EngineConfig
from engine.sharding.group import RankGroup
from engine.sharding.shard import Shard
from engine.stepping.stepper import PlainStepper
from engine.torch_engine import TorchEngine
from tests.fakes import packed as fakes
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import load, prompt, requests, run
from tests.fakes.mixtures import stack_experts
from tests.fakes.packed import CONFIGS, pack, pack_stacks
from tests.fakes.ranks import ranked
from tests.integration.test_packed import EIGHT, numbers

# of two ranks each has whole blocks of 128, and some have more than one
SIZES = {"hidden_size": 160, "intermediate_size": 512, "initializer_range": 0.05}
SHAPE = {**SIZES, "head_dim": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**SHAPE, "attention_bias": True},
    "phi3": {**SIZES, "hidden_size": 256, "num_attention_heads": 2},
    "qwen3_moe": {**SHAPE, "moe_intermediate_size": 64},
    "minimax_m2": {**SHAPE, "rotary_dim": 64},
    "deepseek_v3": {
        **SIZES,
        "moe_intermediate_size": 256,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 64,
    },
}
STATES = {
    **SHAPE,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 16,
}
FAMILIES |= {
    "qwen3_next": {
        **STATES,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 256,
    },
    "qwen3_5_text": STATES,
    "granitemoehybrid": {
        "hidden_size": 256,
        "intermediate_size": 64,
        "shared_intermediate_size": 256,
        "initializer_range": 0.05,
        "head_dim": 128,
        "mamba_d_state": 128,
        "mamba_n_heads": 256,
        "mamba_d_head": 2,
    },
    "falcon_h1": {
        **SHAPE,
        "hidden_size": 256,
        "mamba_d_ssm": 256,
        "mamba_d_state": 128,
        "mamba_n_heads": 256,
        "mamba_d_head": 1,
    },
    "gemma4_text": {
        **SHAPE,
        "global_head_dim": 256,
        "hidden_size_per_layer_input": 128,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
    "lfm2": {**SHAPE, "hidden_size": 256, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {**SHAPE, "hidden_size": 256, "moe_intermediate_size": 64},
}
PROMPTS = [prompt(length) for length in (1, 17, 40)]
CPU = torch.device("cpu")
BLOCKED = ("fp8", "fp8 ue8m0")  # the same inputs share a scale on one rank and on two


def made(folder: Path, family: str, layout: str) -> tuple[Path, Path]:
    """Packed, and with the same numbers in float32."""
    plain, packed = folder / "plain", folder / "packed"
    make_checkpoint(plain, family, **FAMILIES[family])
    pack(plain, packed, layout)
    return packed, plain


def part_of(folder: Path, share: Shard) -> Model:
    """What a rank reads, which is not run."""
    checkpoint, group = open_checkpoint(str(folder)), RankGroup(share, None, CPU)
    place = Placement(torch.float32, CPU, group=group, storage=LinearFactory(TorchProducts()))
    return load_model(checkpoint, read_config(checkpoint, "auto"), 64, place)


def logits(engine: TorchEngine, tokens: tuple[int, ...]) -> Tensor:
    """[tokens, vocabulary], as all ranks come to them."""
    assert isinstance(engine.stepper, PlainStepper)
    span = Span(0, len(tokens), range(1 + len(tokens) // engine.info.block_size))
    ran = engine.stepper.runner.run(Plan(tokens, (), [span], range(len(tokens))))
    assert ran.logits is not None
    return ran.logits.clone()


def parts_say_the_same(packed: Path, plain: Path) -> None:
    """Of two ranks each has the numbers of its part."""
    for rank in range(2):
        ours, theirs = (part_of(one, Shard(rank, 2)) for one in (packed, plain))
        pairs = list(zip(numbers(ours), numbers(theirs), strict=True))
        assert len(pairs) > 6
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def away(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", CONFIGS)
def test_a_rank_reads_its_part_number_by_number(
    layout: str, family: str, tmp_path: Path
) -> None:
    parts_say_the_same(*made(tmp_path, family, layout))


def test_a_rank_reads_its_experts_of_a_stack(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    stack_experts(make_checkpoint(plain, "qwen3_moe", **FAMILIES["qwen3_moe"]))
    pack_stacks(plain, packed)
    parts_say_the_same(packed, plain)


def test_ranks_may_share_the_scale_of_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes, "PRODUCTS", (*fakes.PRODUCTS, "in_proj_ba.weight"))
    parts_say_the_same(*made(tmp_path, "qwen3_next", "fp8"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", [one for one in CONFIGS if one not in EIGHT])
def test_two_ranks_of_four_bits_say_what_one_process_says(
    layout: str, family: str, tmp_path: Path
) -> None:
    packed, _ = made(tmp_path, family, layout)
    alone = load(packed, cpu_kernels="torch")
    said = run(alone, requests(PROMPTS))
    with ranked(packed, 2, cpu_kernels="torch", max_num_batched_tokens=24) as engine:
        assert run(engine, requests(PROMPTS)) == said
        assert engine.info.fingerprint == alone.info.fingerprint


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("layout", ["fp8", "awq", "gptq"])
def test_two_ranks_by_a_cpu_s_own_kernels(layout: str, family: str, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, family, layout)
    said = run(load(packed), requests(PROMPTS))
    with ranked(packed, 2) as engine:
        assert run(engine, requests(PROMPTS)) == said


@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize("layout", EIGHT)
def test_two_ranks_of_eight_bits_say_nearly_the_same(
    layout: str, family: str, tmp_path: Path
) -> None:
    """Each rounds its own inputs; by blocks these are the same, but for their last bits."""
    packed, _ = made(tmp_path, family, layout)
    tokens = PROMPTS[-1]
    with torch.inference_mode(), ranked(packed, 2, cpu_kernels="torch") as engine:
        said = logits(engine, tokens)
        exact = logits(load(packed, cpu_kernels="torch"), tokens)
    assert away(said, exact) < (0.02 if layout in BLOCKED else 0.1)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
def test_ranks_round_to_four_bits_as_one_process(family: str, tmp_path: Path) -> None:
    folder, tokens = make_checkpoint(tmp_path, family, **FAMILIES[family]), PROMPTS[-1]
    chosen: dict[str, Any] = {"cpu_kernels": "torch", "quantization": "int4"}
    with torch.inference_mode(), ranked(folder, 2, **chosen) as engine:
        said, exact = logits(engine, tokens), logits(load(folder, **chosen), tokens)
    assert away(said, exact) < 1e-4


def test_ranks_lose_no_more_in_eight_bits_than_one_process(tmp_path: Path) -> None:
    """What leads back has scales of each rank's own, so they do not say the very same."""
    folder, tokens = make_checkpoint(tmp_path, "llama", **FAMILIES["llama"]), PROMPTS[-1]
    chosen: dict[str, Any] = {"cpu_kernels": "torch", "quantization": "fp8"}
    with torch.inference_mode(), ranked(folder, 2, **chosen) as engine:
        said, alone = logits(engine, tokens), logits(load(folder, **chosen), tokens)
    exact = logits(load(folder), tokens)
    assert 0 < away(said, exact) < 1.2 * away(alone, exact)


@pytest.mark.parametrize(
    ("family", "layout", "shape", "why"),
    [
        ("llama", "fp8", {"head_dim": 48}, "96 queries of each rank are not in groups of 128"),
        ("llama", "float-quantized", {"head_dim": 24, "intermediate_size": 36}, None),
        ("llama", "fp8", {"intermediate_size": 320}, "160 columns of the MLP of each rank"),
        ("llama", "awq", {"intermediate_size": 96}, "48 columns .* not in groups of 32"),
        ("llama", "gptq", {"head_dim": 8}, "16 attention's answers of each rank"),
        ("deepseek_v3", "fp8", {"v_head_dim": 32}, "192 keys of each rank"),
        ("qwen3_next", "fp8", {"linear_key_head_dim": 64}, "64 states' keys of each rank"),
        ("qwen3_5_text", "fp8", {"linear_value_head_dim": 8}, "64 states' values of each"),
        ("qwen3_5_text", "awq", {"linear_num_value_heads": 24}, "12 states' rates of each"),
        ("qwen3_5_text", "awq", {"linear_num_value_heads": 8}, "4 states' rates of each"),
        ("deepseek_v3", "awq", {"moe_intermediate_size": 32}, "16 columns of the shared"),
    ],
)
def test_groups_that_would_be_parted_are_named(
    tmp_path: Path, family: str, layout: str, shape: dict[str, Any], why: str | None
) -> None:
    """Scales of whole outputs go with any cut."""
    make_checkpoint(tmp_path / "plain", family, **{**FAMILIES[family], **shape})
    pack(tmp_path / "plain", packed := tmp_path / "packed", layout)
    config = EngineConfig(model=str(packed), tensor_parallel_size=2, cpu_kernels="torch")
    if why is None:
        refuse_ranks(config)
        return
    with pytest.raises(UnusableCheckpoint, match=f"--tensor-parallel-size 2: {why}"):
        refuse_ranks(config)


def test_four_bits_are_rounded_by_groups_that_no_rank_parts(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", **{**FAMILIES["llama"], "intermediate_size": 384})
    config = EngineConfig(model=str(tmp_path), tensor_parallel_size=2, quantization="int4")
    with pytest.raises(UnusableCheckpoint, match="192 columns of the MLP of each rank are not"):
        refuse_ranks(config)
