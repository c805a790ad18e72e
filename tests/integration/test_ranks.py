"""Whatever is shared out among ranks, an engine says what one process says."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError, UnusableCheckpoint, UnusableTier
from engine.loading import load_engine
from engine.ranks.opening import refuse_ranks
from engine.request import Sampling
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine
from node.identity import layout_of
from tests.fakes.checkpoints import FAMILY_SHAPE, make_checkpoint
from tests.fakes.driver import load, prompt, requests, run
from tests.fakes.fetched import split
from tests.fakes.ranks import ranked

PROMPTS = [prompt(length) for length in (1, 17, 33, 75)]
LONGER = [(*tokens, *prompt(21, seed=8)) for tokens in PROMPTS]  # they begin as the others
SEEDED = Sampling(
    max_tokens=12, temperature=0.9, top_p=0.95, seed=11, ignore_eos=True, prompt_logprobs=0
)
NOT_A_NUMBER = 0xFF
FLAG = "--tensor-parallel-size 2"


def fill(engine: TorchEngine, byte: int) -> None:
    """All KV memory of all ranks, as if it had been used before."""
    for region in engine.kv_regions:
        ctypes.memset(region.at(0), byte, region.block_bytes * region.num_blocks)


@pytest.mark.parametrize("family", FAMILY_SHAPE)
def test_two_ranks_say_what_one_process_says(tmp_path: Path, family: str) -> None:
    folder = make_checkpoint(tmp_path, family)
    alone = run(load(folder), requests(PROMPTS, SEEDED))
    with ranked(folder, 2, max_num_batched_tokens=40) as engine:
        assert run(engine, requests(PROMPTS, SEEDED)) == alone


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("llama", {}),
        ("olmo2", {}),  # with norms over all heads, of which two ranks have the same
        ("qwen2", {"vocab_size": 401}),  # of which one rank has more
        ("phi3", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("mixtral", {}),
        ("deepseek_v3", {}),
        ("glm4_moe", {}),  # whose norms are in the order of its heads
        ("minimax_m2", {}),
        ("gemma4_text", {}),
        ("gemma4", {}),  # whose global layers have fewer heads still
    ],
)
def test_four_ranks_and_fewer_kv_heads(
    tmp_path: Path, family: str, shape: dict[str, Any]
) -> None:
    """Several ranks then have the same head."""
    folder = make_checkpoint(tmp_path, family, **shape)
    alone = load(folder)
    said = run(alone, requests(PROMPTS, SEEDED))
    with ranked(folder, 4) as engine:
        assert run(engine, requests(PROMPTS, SEEDED)) == said
        ours, theirs = layout_of(engine), layout_of(alone)
        assert (ours.kv_heads, ours.tensor_parallel_size) == (theirs.kv_heads, 4)
        assert engine.info.fingerprint == alone.info.fingerprint


@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), (2, 1), (2, 4)])
@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3", "gemma4_text", "gemma4"])
def test_split_among_ranks_is_one_engine(
    tmp_path: Path, family: str, prefill: int, decode: int
) -> None:
    """Heads go to the ranks that have them, and what is behind a prompt is cleared on all."""
    folder = make_checkpoint(tmp_path, family)
    whole = load(folder)
    with (
        ranked(folder, prefill, max_num_batched_tokens=24) as source,
        ranked(folder, decode) as sink,
    ):
        for engine in (source, sink):
            fill(engine, NOT_A_NUMBER)
        for prompts in (PROMPTS, LONGER):
            asked = requests(prompts, SEEDED)
            expected = [token for answer in run(whole, asked) for token in answer]
            assert split(source, sink, asked)[1] == expected


@pytest.mark.parametrize(
    ("family", "shape", "why"),
    [
        ("llama", {"num_attention_heads": 3, "num_key_value_heads": 3}, "3 KV heads"),
        ("llama", {"intermediate_size": 49}, r"49 columns of the MLP \(intermediate_size\)"),
        ("deepseek_v3", {"num_attention_heads": 3, "num_key_value_heads": 3}, "3 heads"),
        ("mixtral", {"num_local_experts": 3}, "3 experts"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 41}, "41 columns of the shared"),
    ],
)
def test_what_does_not_share_out_is_named(
    tmp_path: Path, family: str, shape: dict[str, Any], why: str
) -> None:
    folder = make_checkpoint(tmp_path, family, **{"hidden_size": 48, "head_dim": 16, **shape})
    with pytest.raises(UnusableCheckpoint, match=f"{FLAG}: {why}"):
        refuse_ranks(EngineConfig(model=str(folder), tensor_parallel_size=2))


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"model_impl": "transformers"}, UnusableCheckpoint, "transformers' own code"),
        ({"device": "cuda:1"}, EngineError, "0 devices from cuda:1 on are too few"),
        ({"kv_disk_path": "/nowhere"}, UnusableTier, "no tiers below the KV memory"),
    ],
)
def test_what_goes_with_one_process_only_is_refused(
    tmp_path: Path, settings: dict[str, Any], error: type[EngineError], why: str
) -> None:
    folder = make_checkpoint(tmp_path)
    with pytest.raises(error, match=why) as raised:
        refuse_ranks(EngineConfig(model=str(folder), tensor_parallel_size=2, **settings))
    assert FLAG in str(raised.value)


def test_encoders_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "bert", auto="AutoModel", pad_token_id=1)
    with pytest.raises(UnusableCheckpoint, match=r"encoders run in one process only"):
        refuse_ranks(EngineConfig(model=str(folder), tensor_parallel_size=2))


def test_ranks_are_not_made_of_nothing(tmp_path: Path) -> None:
    config = EngineConfig(model=str(make_checkpoint(tmp_path)), tensor_parallel_size=2)
    with pytest.raises(EngineError, match="no other ranks were started"):
        load_engine(config)
