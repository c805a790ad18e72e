"""Attention compiles for Hopper at the shapes that are served: no spills, and room for it."""

import pytest

from tests.kernels.ahead import compiled

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
ALL = "window=500, softcap=30.0, sinks=torch.empty(heads)"
LLAMA, QWEN = (32, 8, 128, 2, 128), (32, 4, 128, 2, 128)
GEMMA, NARROW = (16, 8, 256, 2, 256), (64, 8, 80, 2, 80)
LATENT, LATENT_SHARD = (128, 1, 576, 1, 512), (16, 1, 576, 1, 512)


@pytest.fixture(scope="module")
def decode() -> dict[str, dict[str, int]]:
    shapes = (LLAMA, QWEN, GEMMA, NARROW, LATENT_SHARD)
    calls = [DECODE.format(sequences=64, shape=shape, style="") for shape in shapes]
    calls.append(DECODE.format(sequences=1, shape=LLAMA, style=ALL))
    return compiled("engine.kernels.gpu.decode_attention", *calls)


def test_two_decode_programs_fit_a_multiprocessor(decode: dict[str, dict[str, int]]) -> None:
    assert set(decode) == {"_decode", "_add_parts"}
    for told in decode.values():
        assert told["spilled"] == 0
        assert 2 * told["shared"] < SHARED_BYTES
        assert 2 * told["registers"] * 4 * 128 <= REGISTERS_BYTES


def test_a_decode_program_over_latents_fits_alone() -> None:
    call = DECODE.format(sequences=64, shape=LATENT, style="")
    told = compiled("engine.kernels.gpu.decode_attention", call)["_decode"]
    assert told["spilled"] == 0
    assert told["shared"] <= SHARED_BYTES
