"""Attention compiles for Hopper at the shapes that are served: no spills, and room for it."""

from dataclasses import astuple, replace

import pytest

from engine.attention.device_batch import LEAST_EXPANDED
from engine.kernels.gpu.attention_plans import plan_tiles
from engine.kernels.gpu.paged_call import Heads
from tests.kernels.ahead import compiled, registers_of_latents

SHARED_BYTES = 227 * 1024  # of a multiprocessor, that one program can have
REGISTERS_BYTES = 64 * 1024 * 4
DECODE = """
from engine.kernels.style import AttentionStyle
S, (heads, kv_heads, width, parts, value_width) = {sequences}, {shape}
bf16, i32 = torch.bfloat16, torch.int32
style = AttentionStyle(0.1, {style})
decode_attention(
    torch.empty(S, heads, width, dtype=bf16),
    torch.empty(3, 2, parts, kv_heads, 16, width, dtype=bf16),
    1, torch.empty(S, 256, dtype=i32), torch.empty(S, dtype=i32), style, value_width,
)
"""
PREFILL = """
from engine.kernels.style import AttentionStyle
heads, kv_heads, width, parts, value_width = {shape}
bf16, i32 = torch.bfloat16, torch.int32
style = AttentionStyle(0.1, {style})
prefill_attention(
    torch.empty(9, heads, width, dtype=bf16),
    torch.empty(3, 2, parts, kv_heads, 16, width, dtype=bf16), 1,
    torch.empty(2, 256, dtype=i32), torch.empty(3, dtype=i32), torch.empty(2, dtype=i32),
    {longest}, style, value_width,
)
"""
SPLIT_PREFILL = """
from engine.kernels.style import AttentionStyle
heads, kv_heads, width, parts, value_width = {shape}
bf16, i32 = torch.bfloat16, torch.int32
style = AttentionStyle(0.1, {style})
prefill_attention(
    torch.empty({longest}, heads, width, dtype=bf16),
    torch.empty(3, 2, parts, kv_heads, 16, width, dtype=bf16), 1,
    torch.empty(1, 999, dtype=i32), torch.empty(2, dtype=i32), torch.empty(1, dtype=i32),
    {longest}, style, value_width,
    plan=PrefillPlan(*{plan}),
)
"""
ALL = "window=500, softcap=30.0, sinks=torch.empty(heads)"
LLAMA, NARROW = (32, 8, 128, 2, 128), (64, 8, 80, 2, 80)
EXPANDED = (16, 16, 192, 2, 128)  # keys and values made of latents
WIDE = (32, 4, 512, 2, 512)  # Gemma 4's global layers
LATENT, LATENT_SHARD = (128, 1, 576, 1, 512), (16, 1, 576, 1, 512)


@pytest.fixture(scope="module")
def decode() -> dict[str, dict[str, int]]:
    shapes = LLAMA, NARROW, LATENT_SHARD, WIDE
    calls = [DECODE.format(sequences=64, shape=shape, style="") for shape in shapes]
    calls.append(DECODE.format(sequences=1, shape=LLAMA, style=ALL))
    return compiled("engine.kernels.gpu.decode_attention", *calls)


def test_two_decode_programs_fit_a_multiprocessor(decode: dict[str, dict[str, int]]) -> None:
    assert set(decode) == {"_decode", "_add_parts"}
    for told in decode.values():
        assert told["spilled"] == 0
        assert 2 * told["shared"] < SHARED_BYTES
        assert 2 * told["registers"] * 4 * 128 <= REGISTERS_BYTES


@registers_of_latents
def test_a_decode_program_over_latents_fits_alone() -> None:
    """Its registers are full."""
    call = DECODE.format(sequences=64, shape=LATENT, style="")
    told = compiled("engine.kernels.gpu.decode_attention", call)["_decode"]
    assert told["spilled"] == 0
    assert told["shared"] <= SHARED_BYTES


@pytest.mark.parametrize("shape", [LLAMA, LATENT], ids=["llama", "latent"])
def test_decode_spills_nothing_in_float32(shape: tuple[int, ...]) -> None:
    """It is multiplied without tensor cores, for tests: what spills would take gigabytes."""
    call = DECODE.format(sequences=64, shape=shape, style=ALL)
    told = compiled(
        "engine.kernels.gpu.decode_attention", call.replace("torch.bfloat16", "torch.float32")
    )
    assert told["_decode"]["spilled"] == 0
    assert told["_decode"]["shared"] <= SHARED_BYTES


def test_a_prefill_program_fits() -> None:
    calls = [
        PREFILL.format(longest=8192, shape=LLAMA, style=""),
        PREFILL.format(longest=2, shape=LLAMA, style=ALL),
    ]
    told = compiled("engine.kernels.gpu.prefill_attention", *calls)["_prefill"]
    assert told["spilled"] == 0
    assert told["shared"] <= SHARED_BYTES
    assert told["registers"] * 4 * 256 <= REGISTERS_BYTES


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_prefill_program_of_wide_heads_fits(dtype: str, rows: int) -> None:
    call = PREFILL.format(longest=rows // 8, shape=WIDE, style="")
    call = call.replace("torch.bfloat16", f"torch.{dtype}")
    told = compiled("engine.kernels.gpu.prefill_attention", call)["_prefill"]
    assert told["shared"] <= SHARED_BYTES
    assert told["spills_in_main"] == told["narrow_loads"] == told["narrow_stores"] == 0


@pytest.mark.parametrize("splits", [1, 4])
def test_a_prefill_program_over_what_is_made_of_latents_fits(splits: int) -> None:
    """Its keys are wider than its values. Only chunks that fill its rows come here."""
    heads, kv_heads, width, parts, value_width = EXPANDED
    tiles = plan_tiles(Heads(heads, kv_heads, width, value_width, parts, 2), LEAST_EXPANDED)
    plan = astuple(replace(tiles, splits=splits))
    call = SPLIT_PREFILL.format(longest=LEAST_EXPANDED, shape=EXPANDED, style="", plan=plan)
    told = compiled("engine.kernels.gpu.prefill_attention", call)["_prefill"]
    assert told["spilled"] == told["narrow_loads"] == told["narrow_stores"] == 0
    assert told["wgmma"] > 0
    assert told["shared"] <= SHARED_BYTES
