"""Inner loops at the shapes of models, compiled for Hopper: no spills, whole vectors, wgmma."""

from dataclasses import astuple, replace

import pytest

from engine.kernels.gpu.attention_plans import plan_tiles
from engine.kernels.gpu.paged_call import Heads
from tests.kernels.ahead import compiled, registers_of_latents
from tests.kernels.machine_code import Code
from tests.kernels.test_attention_ahead import (
    ALL,
    DECODE,
    LATENT,
    LATENT_SHARD,
    LLAMA,
    PREFILL,
    SHARED_BYTES,
    SPLIT_PREFILL,
)

QWEN_MOE, GPT_OSS, QUARTER = (32, 4, 128, 2, 128), (64, 8, 64, 2, 64), (32, 1, 576, 1, 512)
ATTENDING = {"llama": (LLAMA, ""), "qwen": (QWEN_MOE, ""), "gpt-oss": (GPT_OSS, ALL)}
REGISTERS = 64 * 1024  # of a multiprocessor
BESIDE = {16: 3, 64: 2, 128: 1}  # programs of it, as `plan_prefill` counts on
LATENTS = {"a shard of 16 heads": LATENT_SHARD, "128 heads": LATENT}
WEIGHTS = {
    "plain": "PlainWeight(torch.empty(32, 2048, 1024, dtype=bf16))",
    "fp8": "Fp8Weight(torch.empty(32, 2048, 1024, dtype=e4m3), torch.empty(32, 1, 2048))",
    "blocks": "Fp8Weight(torch.empty(32, 2048, 1024, dtype=e4m3), torch.empty(32, 8, 2048))",
    "int4": "Int4Weight(torch.empty(32, 2048, 8, 64, dtype=torch.uint8), "
    "torch.empty(32, 8, 2048, dtype=bf16), torch.empty(32, 8, 2048, dtype=torch.uint8), 1024)",
}
PRODUCT = """
from engine.kernels.weights import Fp8Weight, Int4Weight
bf16, e4m3 = torch.bfloat16, torch.float8_e4m3fn
weight, order, offsets = {weight}, torch.empty({rows}).int(), torch.empty(33).int()
rows = torch.empty({rows}, 1024, dtype=bf16)
for route in (Route(offsets, order, None, 4), Route(offsets, None, order)):
    TritonProducts().grouped(rows, route, weight, torch.empty(32, 2048, dtype=bf16))
"""
LISTING = """
.L_x_2:
        /*0000*/                   LDL R1, [R1] ;
.L_x_0:
        /*0010*/              @!P0 STL [R1], R2 ;
        /*0020*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4] ;
        /*0030*/               @P1 BRA `(.L_x_0) ;
        /*0040*/              @!P2 BRA `(.L_x_2) ;
.L_x_1:
        /*0050*/                   LDL.64 R4, [R1+0x8] ;
        /*0060*/                   LDL.64 R6, [R1+0x10] ;
        /*0062*/                   PRMT R8, R6, 0x7632, R8 ;
        /*0064*/                   SHFL.BFLY PT, R6, R4, 0x10, 0x1f ;
        /*0068*/              @!P1 STS [R12+UR4], R6 ;
        /*0070*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4] ;
        /*0080*/                   BRA `(.L_x_3) ;
        /*0090*/               @P1 BRA `(.L_x_1) ;
.L_x_3:
        /*00a0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00a4*/                   PRMT R8, R6, 0x7632, R8 ;
        /*00a8*/                   LDG.E.U16 R3, desc[UR4][R2.64] ;
        /*00b0*/                   STG.E.U8 desc[UR4][R2.64], R3 ;
        /*00c0*/                   STG.E.128 desc[UR4][R2.64], R4 ;
"""


def split_prefill(shape: tuple[int, ...], style: str, rows: int) -> dict[str, dict[str, int]]:
    """Compiled for a tile of so many rows, as `plan_prefill` would have it."""
    heads, kv_heads, width, parts, value_width = shape
    longest = rows // (heads // kv_heads)
    tiles = plan_tiles(Heads(heads, kv_heads, width, value_width, parts, 2), max(1, longest))
    assert tiles.rows == rows
    call = SPLIT_PREFILL.format(
        longest=max(1, longest),
        shape=shape,
        style=style,
        plan=astuple(replace(tiles, splits=3)),
    )
    return compiled("engine.kernels.gpu.prefill_attention", call)


def test_a_listing_is_read() -> None:
    """The second loop multiplies, too, and is longer; what is around both is no inner one."""
    assert Code(LISTING).counts() == {
        "wgmma": 2,
        "narrow_loads": 1,
        "narrow_stores": 1,
        "exchanges_in_loops": 2,
        "regroups_in_loops": 1,
        "spills_in_loops": 3,
        "spills_in_main": 1,
        "main": 3,
    }


@pytest.mark.parametrize(("shape", "style"), ATTENDING.values(), ids=ATTENDING.keys())
def test_attention_spills_in_no_loop(shape: tuple[int, ...], style: str) -> None:
    sharing = shape[0] // shape[1]
    prefill, by_rows = "engine.kernels.gpu.prefill_attention", dict[int, dict[str, int]]()
    for rows in (16, 64, 128):
        call = PREFILL.format(longest=rows // sharing, shape=shape, style=style)
        by_rows[rows] = compiled(prefill, call)["_prefill"]
    call = DECODE.format(sequences=64, shape=shape, style=style)
    decode = compiled("engine.kernels.gpu.decode_attention", call)["_decode"]
    for told in (decode, *by_rows.values()):
        assert told["spills_in_loops"] == told["narrow_loads"] == told["narrow_stores"] == 0
    assert min(by_rows[64]["wgmma"], by_rows[128]["wgmma"]) > 0


@pytest.mark.parametrize("rows", [16, 64, 128])
@pytest.mark.parametrize(("shape", "style"), ATTENDING.values(), ids=ATTENDING.keys())
def test_prefill_that_is_split_spills_nothing(
    shape: tuple[int, ...], style: str, rows: int
) -> None:
    """It is a kernel of its own: whole chunks' has no register left for where parts lie."""
    told = split_prefill(shape, style, rows)
    assert told.keys() == {"_prefill", "_add_parts"}
    for one in told.values():
        assert one["spilled"] == one["narrow_loads"] == 0
    prefill = told["_prefill"]
    assert prefill["narrow_stores"] == 0
    assert prefill["shared"] * BESIDE[rows] <= SHARED_BYTES
    assert prefill["registers"] * BESIDE[rows] * (256 if rows == 128 else 128) <= REGISTERS


@registers_of_latents
@pytest.mark.parametrize(("shape", "rows"), [(LATENT_SHARD, 16), (LATENT, 64)], ids=str)
def test_prefill_over_latents_that_is_split_spills_next_to_nothing_in_its_main_loop(
    shape: tuple[int, ...], rows: int
) -> None:
    told = split_prefill(shape, "", rows)["_prefill"]
    assert told["spills_in_main"] <= 2
    assert told["spills_in_loops"] <= 24
    assert told["spilled"] <= 224


@registers_of_latents
@pytest.mark.parametrize("shape", LATENTS.values(), ids=LATENTS.keys())
def test_prefill_over_latents_spills_at_the_diagonal_only(shape: tuple[int, ...]) -> None:
    """Its registers are full. The tiles that are masked are one or two of each program."""
    call = PREFILL.format(longest=8192, shape=shape, style="")
    told = compiled("engine.kernels.gpu.prefill_attention", call)["_prefill"]
    assert told["wgmma"] > 0
    assert told["spills_in_main"] == 0
    assert told["spills_in_loops"] <= 24
    assert told["spilled"] <= 224


@registers_of_latents
@pytest.mark.parametrize("shape", [LATENT_SHARD, QUARTER, LATENT], ids=["16", "32", "128"])
def test_decode_over_latents_spills_in_no_loop(shape: tuple[int, ...]) -> None:
    call = DECODE.format(sequences=64, shape=shape, style="")
    told = compiled("engine.kernels.gpu.decode_attention", call)["_decode"]
    assert told["spills_in_loops"] == 0


@pytest.mark.parametrize("heights", [(16, 32), (64,), (128,)], ids=str)
@pytest.mark.parametrize("name", WEIGHTS)
def test_products_of_experts_spill_nothing_and_write_whole_vectors(
    name: str, heights: tuple[int, ...]
) -> None:
    """To the experts and back, at each height of tiles."""
    calls = [PRODUCT.format(weight=WEIGHTS[name], rows=32 * each) for each in heights]
    told = compiled("engine.kernels.gpu.products", *calls)["multiply_tiles"]
    assert told["spilled"] == told["narrow_stores"] == 0
    assert (told["wgmma"] > 0) == (heights[0] > 32)
    if name != "int4":  # which has zeros of a byte
        assert told["narrow_loads"] == 0


def test_products_in_parts_are_read_and_written_in_whole_vectors() -> None:
    call = "TritonProducts().multiply({rows}, PlainWeight({weight}))".format(
        rows="torch.empty(3, 4096, dtype=torch.bfloat16)",
        weight="torch.empty(1, 1024, 4096, dtype=torch.bfloat16)",
    )
    for told in compiled("engine.kernels.gpu.products", call).values():
        assert told["narrow_loads"] == told["narrow_stores"] == 0


def test_what_turns_with_a_number_is_read_in_whole_vectors() -> None:
    """Cosines and sines aside, which all heads share, and a head's norm with them."""
    call = """
rows, slots = torch.empty(9, 48, {width}).bfloat16(), torch.empty(9).long()
memory, rope = torch.empty(3, 2, 2, 8, 16, {width}).bfloat16(), torch.ones(99, 2, {width})
norm = torch.ones({width}).bfloat16()
for norms in (None, HeadNorms(norm, norm, 1e-6)):
    heads = rows.split((32, 8, 8), 1)
    turn_and_write(*heads, rope.bfloat16(), slots, memory, 1, slots, norms)
"""
    for width, most in ((64, 0), (128, 8)):
        told = compiled("engine.kernels.gpu.turn_and_write", call.format(width=width))
        assert told["_turn_and_write"]["narrow_loads"] <= most
        assert told["_turn_and_write"]["narrow_stores"] == 0
