"""`python -m bench.transfer`: whole hand-overs beside the floors of this machine.

Each line moves the same bytes between two processes by memcpy (within one process), a plain
loopback socket, raw NIXL from prepared lists, and by both connectors from offer to Arrived,
in turn, several times; medians are compared. Scattered blocks are random on both sides, and
no hand-over's floor: a plain socket has no blocks, so it and memcpy stay contiguous.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import cyclopts

from bench.transfer.figures import KIB, MICRO, MOST, Figures, Stages, repeats, size_name
from bench.transfer.memory import Placing
from bench.transfer.pair import Pair, open_pair
from bench.transfer.raw import Copy
from bench.transfer.source import KINDS, Kind

SIZES = tuple(size * KIB for size in (4, 64, 1024, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB))
PLACINGS: tuple[Placing, ...] = ("contiguous", "scattered")
LARGEST_BLOCK = 32 * KIB
FIXED_RUNS = 300
FLOORS = {"nixl": "raw nixl", "tcp": "plain socket"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure; all of it takes about a minute."""

    sizes: tuple[int, ...] = SIZES
    """Bytes of a hand-over."""
    placings: tuple[Placing, ...] = PLACINGS
    """How blocks lie in both memories."""
    block_bytes: int = LARGEST_BLOCK
    """Of blocks; a hand-over of less is one block."""
    turns: int = MOST
    """How often a line is measured at most; large sizes are less often."""
    fixed_runs: int = FIXED_RUNS
    """Hand-overs of one block for the fixed cost."""


@dataclass(slots=True)
class Line:
    """One size in one placing: everything in turn."""

    pair: Pair
    copy: Copy
    num_bytes: int
    placing: Placing

    def run(self, times: int) -> dict[str, Figures]:
        """By name; the first turn warms up and is not counted."""
        turns = [self._turn(number) for number in range(times + 1)][1:]
        return {
            name: Figures(self.num_bytes, [turn[name] for turn in turns]) for name in turns[0]
        }

    def _turn(self, number: int) -> dict[str, float]:
        pair, memory = self.pair, self.pair.memory
        theirs = memory.blocks(self.num_bytes, self.placing, 2 * number)
        ours = memory.blocks(self.num_bytes, self.placing, 2 * number + 1)
        return {
            "memcpy": self.copy.copy(self.num_bytes),
            "plain socket": pair.receive(self.num_bytes),
            "raw nixl": pair.read_raw(theirs, ours),
            **{kind: pair.hand_over(kind, theirs, ours).seconds for kind in KINDS},
        }


def main(options: Annotated[Options, cyclopts.Parameter(name="*")] | None = None) -> None:
    """Measure hand-overs beside floors."""
    options = options or Options()
    for block, sizes in _by_block(options):
        room = max(sizes) if block == options.block_bytes else max(sizes) * 16
        with open_pair(room, block) as pair:
            copy = Copy(pair.memory)
            for placing in options.placings:
                for size in sizes:
                    turns = min(options.turns, repeats(size))
                    _say_line(size, placing, Line(pair, copy, size, placing).run(turns))
            for kind in KINDS:
                _say_fixed(kind, block, _fixed(pair, kind, options.fixed_runs))


def _by_block(options: Options) -> Iterator[tuple[int, list[int]]]:
    blocks = {size: min(size, options.block_bytes) for size in options.sizes}
    for block in sorted(set(blocks.values())):
        yield block, [size for size in options.sizes if blocks[size] == block]


def _fixed(pair: Pair, kind: Kind, runs: int) -> list[Stages]:
    return [pair.hand_over(kind, [0], [0]) for _ in range(runs + 1)][1:]


def _say_line(size: int, placing: Placing, figures: dict[str, Figures]) -> None:
    for name, one in figures.items():
        floor = FLOORS.get(name)
        share = f", {one.share_of(figures[floor]):4.0%} of {floor}" if floor else ""
        _say(f"{size_name(size):>8} {placing:10} {name:12} {one}{share}")


def _say_fixed(kind: Kind, block: int, stages: list[Stages]) -> None:
    _say(f"fixed cost of a hand-over, {kind}, {size_name(block)}, offer to Arrived less bytes:")
    _say(f"    {'all':45} {_spread([one.fixed for one in stages])}")
    for name in stages[0].split():
        _say(f"    {name:45} {_spread([one.split()[name] for one in stages])}")


def _spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))]
    return f"p50 {p50 * MICRO:7.1f} p99 {p99 * MICRO:7.1f} us"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    cyclopts.run(main)
