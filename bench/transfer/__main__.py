"""`python -m bench.transfer`: whole hand-overs, compared with the floors of this machine.

Each line moves the same bytes between two processes by memcpy (within one process), a plain
loopback socket, raw NIXL from prepared lists, and by both connectors from offer to Arrived,
in turn, several times; medians are compared. A connector's rate is that of several overlapping
hand-overs, except for the largest sizes, because connectors are designed to overlap them. The
latency is that of a single hand-over. Scattered blocks are random on both sides; a plain socket
and memcpy have no blocks and stay contiguous.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import cyclopts

from bench.transfer.figures import (
    KIB,
    MICRO,
    MOST,
    Figures,
    Stages,
    at_once,
    repeats,
    size_name,
)
from bench.transfer.memory import Placing
from bench.transfer.pair import Blocks, TransferPair, open_pair
from bench.transfer.raw import Copy
from bench.transfer.source import KINDS, Kind
from bench.transfer.steps import MOVED, measure
from kv_transfer.checking import CheckLevel

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
    kv_checksum: Literal["off", "sampled", "full"] = "off"
    """How carefully connectors look at what they moved; no floor does."""
    turns: int = MOST
    """How often a line is measured at most; large sizes are less often."""
    fixed_runs: int = FIXED_RUNS
    """Hand-overs of one block for the fixed cost."""
    steps: bool = True
    """Whether to measure what transfers cost an engine in the same process."""


@dataclass(slots=True)
class Line:
    """One size in one placing, moved in all ways in turn."""

    pair: TransferPair
    copy: Copy
    num_bytes: int
    placing: Placing

    def run(self, times: int) -> dict[str, Figures]:
        """Figures by name; the first turn warms up and is not counted."""
        alone, together = dict[str, list[float]](), dict[str, list[float]]()
        for number in range(times + 1):
            for name, seconds in self._alone(number).items():
                alone.setdefault(name, []).append(seconds)
            for name, seconds in self._together(number).items():
                together.setdefault(name, []).append(seconds)
        return {
            name: Figures(self.num_bytes, seconds[1:], together.get(name, [])[1:])
            for name, seconds in alone.items()
        }

    def _alone(self, number: int) -> dict[str, float]:
        (theirs,), (ours,) = self._blocks(number, 1)
        return {
            "memcpy": self.copy.copy(self.num_bytes),
            "plain socket": self.pair.receive(self.num_bytes),
            "raw nixl": self.pair.read_raw(theirs, ours),
            **{kind: self.pair.hand_over(kind, theirs, ours).seconds for kind in KINDS},
        }

    def _together(self, number: int) -> dict[str, float]:
        if (times := at_once(self.num_bytes)) == 1:
            return {}
        theirs, ours = self._blocks(number, times)
        return {kind: self.pair.stream(kind, theirs, ours) for kind in KINDS}

    def _blocks(self, number: int, times: int) -> tuple[Blocks, Blocks]:
        blocks = self.pair.memory.blocks
        return (
            blocks(self.num_bytes, self.placing, 2 * number, times),
            blocks(self.num_bytes, self.placing, 2 * number + 1, times),
        )


def main(options: Annotated[Options, cyclopts.Parameter(name="*")] | None = None) -> None:
    """Measure hand-overs beside floors."""
    options = options or Options()
    for block, sizes in _by_block(options):
        room = max(size * at_once(size) for size in sizes)
        with open_pair(room, block, CheckLevel.named(options.kv_checksum)) as pair:
            copy = Copy(pair.memory)
            for placing in options.placings:
                for size in sizes:
                    turns = min(options.turns, repeats(size))
                    _say_line(size, placing, Line(pair, copy, size, placing).run(turns))
            for kind in KINDS:
                _say_fixed(kind, block, _fixed(pair, kind, options.fixed_runs))
    if options.steps:
        with open_pair(MOVED, options.block_bytes) as pair:
            for beside, seconds in measure(pair):
                _say(f"decode step of 8, beside {beside:25}: {seconds * MICRO:7.1f} us")


def _by_block(options: Options) -> Iterator[tuple[int, list[int]]]:
    blocks = {size: min(size, options.block_bytes) for size in options.sizes}
    for block in sorted(set(blocks.values())):
        yield block, [size for size in options.sizes if blocks[size] == block]


def _fixed(pair: TransferPair, kind: Kind, runs: int) -> list[Stages]:
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
