"""What a kernel became: a Hopper's instructions, of what kind, and which are in loops."""

import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

LABEL = re.compile(r"\s*(\.L_x_\d+):")
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;")
BRANCH = re.compile(r"BRA\b.*`\((\.L_x_\d+)\)")
MULTIPLIES = re.compile(r"[HQI]G?MMA\b")
BY_WARPGROUPS = re.compile(r"[HQI]GMMA\b")
SPILLS = re.compile(r"(LDL|STL)\b")
EXCHANGES = re.compile(r"(SHFL|STS|BAR)\b")  # with other threads
REGROUPS = re.compile(r"PRMT\b")  # bytes of registers
NARROW = r"\.[US](8|16)\b"  # a number or two bytes at a time
NARROW_LOAD, NARROW_STORE = re.compile(rf"LDG\S*{NARROW}"), re.compile(rf"STG\S*{NARROW}")


def disassembled(cubin: Path) -> str:
    """By the disassembler that comes with Triton."""
    from triton import knobs

    command = [knobs.nvidia.nvdisasm.path, "-c", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Code:
    """A kernel's listing, as nvdisasm writes it."""

    listing: str

    def counts(self) -> dict[str, int]:
        """Of instructions: products of four warps together; loads and stores of memory that
        take one or two bytes each; those that exchange anything with other threads in any loop;
        those that put bytes of registers together anew; those that spill in any loop, and in
        the main one; and all of the main one.
        """
        return {
            "wgmma": self._count(BY_WARPGROUPS),
            "narrow_loads": self._count(NARROW_LOAD),
            "narrow_stores": self._count(NARROW_STORE),
            "exchanges_in_loops": sum(self._count(EXCHANGES, loop) for loop in self.loops),
            "regroups_in_loops": sum(self._count(REGROUPS, loop) for loop in self.loops),
            "spills_in_loops": sum(self._count(SPILLS, loop) for loop in self.loops),
            "spills_in_main": self._count(SPILLS, self.main),
            "main": len(self.main),
        }

    @cached_property
    def lines(self) -> tuple[list[str], dict[str, int]]:
        """Instructions, and where labels stand among them."""
        found, labels = list[str](), dict[str, int]()
        for line in self.listing.splitlines():
            if label := LABEL.match(line):
                labels[label[1]] = len(found)
            elif instruction := INSTRUCTION.match(line):
                found.append(instruction[1])
        return found, labels

    @cached_property
    def loops(self) -> list[range]:
        """Those that have no loop within."""
        found, labels = self.lines
        jumps = ((at, BRANCH.match(one)) for at, one in enumerate(found))
        back = [range(labels[to[1]], at + 1) for at, to in jumps if to and labels[to[1]] <= at]
        return [one for one in back if not any(_within(other, one) for other in back)]

    @property
    def main(self) -> range:
        """The shortest that multiplies: others of a kernel mask besides. Empty: none does."""
        multiply = [loop for loop in self.loops if self._count(MULTIPLIES, loop)]
        return min(multiply, key=len, default=range(0))

    def _count(self, what: re.Pattern[str], where: range | None = None) -> int:
        found, _ = self.lines
        some = found if where is None else found[where.start : where.stop]
        return sum(1 for one in some if what.match(one))


def _within(inner: range, outer: range) -> bool:
    return inner != outer and outer.start <= inner.start and inner.stop <= outer.stop
