"""Tile sizes and splits of attention launches, chosen by hand-written rules on the host."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from engine.kernels.gpu.paged_call import Heads, power_of_two

TILE_BYTES = 40 * 1024
WIDE_TILE_BYTES = 80 * 1024
MOST_SPLITS = 128
MOST_WAVES = 4
ROWS = 16, 64, 128
LEAST_STRETCH = 512  # whole tiles of any plan


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How a launch is cut: each program reads `tile` tokens at a time, for `rows` heads.

    On Hopper a memory-bound kernel wants some 25 KB on their way per multiprocessor (4.8 TB/s
    times 0.7 us, over 132 of them): programs of four warps each, two or three at a time, with a
    tile of some 32 KB arriving while another is counted. Five stages are what that takes: the
    block table is read two stages before the rows it points to. `rows` are padded to the 16 of
    a tensor core's product, whose time hides behind memory's. Latents, which 128 heads read,
    are near the ridge instead: 64 rows by 512 values are 128 registers of each of 256 threads,
    so one program of eight warps fills a multiprocessor, with two tiles of 72 KB. float32 is
    multiplied without tensor cores, so its rows and tiles are small.
    """

    rows: int
    tile: int
    splits: int
    warps: int
    stages: int


@lru_cache(maxsize=1024)
def plan_decode(heads: Heads, sequences: int, most_tokens: int, processors: int) -> DecodePlan:
    """From bounds that hold for a whole graph: `most_tokens` is what a table or a window holds.

    One sequence is cut into programs that are one full wave, all alike. Several may differ in
    length, so they are cut finer, up to four waves, and the last wave wastes little. A program
    that finds nothing to do costs its start, which is why there are not more.
    """
    whole = heads.itemsize == 4
    rows = 16 if whole else min(64, max(16, power_of_two(heads.sharing)))
    wide = rows * heads.padded > 64 * 256
    room = WIDE_TILE_BYTES if wide else TILE_BYTES
    tile = max(16, min(16 if whole else 128, power_of_two(room // heads.token_room + 1) // 2))
    slots = processors if wide else 3 * processors
    programs = sequences * heads.kv_heads * -(-heads.sharing // rows)
    splits = max(1, round(slots * min(MOST_WAVES, sequences) / programs))
    splits = min(splits, MOST_SPLITS, max(1, -(-most_tokens // tile)))
    return DecodePlan(rows, tile, splits, 8 if wide else 4, 3 if wide else 5)


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """How a launch is divided. A tile has `rows`: tokens, each with `packed` query heads. Its
    context is read in up to `splits` stretches of at least `shortest` tokens each.

    A chunk's attention is bound by products. On Hopper a product wants 64 rows for each
    warpgroup, and keys and values come from L2 for every program anew: 128 rows keep that at 3
    TB/s for 400 TFLOP/s. Their scores and values are 128 registers of each of 256 threads, so
    there is one program to a multiprocessor, and it must have its next tile on the way while it
    counts: five stages, of which three tiles are in shared memory (192 KB of 227 for keys and
    values of 128 numbers, 128 at a time). Where values are wider, tiles are shorter; latents
    are shared between the two products, and 64 rows of them fill all registers: the loop over
    masked tiles spills some, the main loop none, and both groups of four warps multiply all
    queries with all keys (docs/performance.md). Keys and values of 512 numbers each leave room
    for two tiles of 32 tokens. float32 is multiplied without tensor cores, so its rows are few.
    """

    rows: int
    packed: int
    tile: int
    warps: int
    stages: int
    splits: int = 1
    shortest: int = LEAST_STRETCH

    @property
    def span(self) -> int:
        """Tokens of a tile."""
        return self.rows // self.packed


class ChunkSizes(NamedTuple):
    """What the host knows about the chunks of a launch; all but `sequences` are upper bounds.

    `longest` is the most tokens of a chunk, `most_tokens` the capacity of a block table.
    """

    tokens: int
    sequences: int
    longest: int
    most_tokens: int
    window: int | None = None


@lru_cache(maxsize=1024)
def plan_prefill(heads: Heads, sizes: ChunkSizes, processors: int) -> PrefillPlan:
    """The plan of a launch; if tiles are few, split so that equal chunks fill one wave.

    By calculation, of Llama-3.1-8B on Hopper: a program of 128 rows takes 22 ns for each
    token that it reads (3 TFLOP/s per multiprocessor). So 128 tokens behind 32k are 32 programs
    of 0.7 ms, or four times as many of a quarter. For that each writes a part of 64 KB, which
    is read again, 17 MB in all (4 us at 4.3 TB/s), and one more kernel is launched (2 to 4 us).
    A stretch of 512 tokens takes 11 us: shorter ones would cost more than they bring.

    Parts are no more than one wave's rows in float32: 8.7 MB for 132 programs of 128 rows by
    128 values, 17 MB for 64 rows by 512 values, of latents.
    """
    tiles = plan_tiles(heads, sizes.longest)
    return replace(tiles, splits=_splits(tiles, heads, sizes, processors))


def plan_tiles(heads: Heads, longest: int) -> PrefillPlan:
    """The tile for chunks of at most `longest` tokens. There are few: each is compiled, with
    and without splits.
    """
    wanted = heads.sharing * longest
    rows = next((some for some in ROWS if wanted <= some), ROWS[-1])
    if heads.itemsize == 4:
        rows, tile, stages = 16, 32, 3
    elif heads.padded > 256:
        rows = min(64, rows)
        tile, stages = (32, 5) if rows == 16 else (64 if heads.parts == 1 else 32, 3)
    else:
        stages = 5
        tile = 32 if heads.padded == 256 else 128 if rows == 128 and not heads.rest else 64
    warps = 8 if rows == 128 or rows * heads.padded > 64 * 128 else 4
    return PrefillPlan(rows, min(heads.sharing, rows), tile, warps, stages)


def _splits(tiles: PrefillPlan, heads: Heads, sizes: ChunkSizes, processors: int) -> int:
    """As many as keep all programs running at once: a multiprocessor runs one program of eight
    warps, two of 64 rows, three of 16 rows (two if values are wide).
    """
    each = -(-sizes.tokens // sizes.sequences)
    groups = -(-heads.sharing // tiles.packed)
    programs = sizes.sequences * -(-each // tiles.span) * heads.kv_heads * groups
    together = 1 if tiles.warps == 8 else 2 if tiles.rows == 64 or heads.padded > 256 else 3
    bound = sizes.most_tokens
    if sizes.window is not None:
        bound = min(bound, sizes.window + tiles.span - 1)
    return max(1, min(together * processors // programs, bound // tiles.shortest, MOST_SPLITS))
