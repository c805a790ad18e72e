"""What has come of a run in which much was hurt."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from tests.e2e.cluster import USED, read_metric
from tests.soak.clients import Told

ANSWER_S = 0.5


class Judge(Protocol):
    """Knows what is right; `excused` are differences that are nobody's fault."""

    excused: int

    def failures(self, told: Mapping[int, Told]) -> list[str]:
        """Calls that failed and should not have."""

    def differences(self, told: Mapping[int, Told]) -> list[str]:
        """Answers that are not what they should be."""


@dataclass(slots=True)
class Verdict:
    """What has come of it; `is_good` is what the exit status says."""

    asked: int
    left: int = 0
    failed: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    excused: int = 0
    seconds: float = 0.0
    longest_wait_s: float = 0.0
    done: Counter[str] = field(default_factory=Counter)

    def judge(self, judge: Judge, told: Mapping[int, Told]) -> None:
        """Compare what was told with what is right; who left early has a part of it."""
        self.left += sum(one.left for one in told.values())
        waits = [one.longest_wait_s for one in told.values()]
        self.longest_wait_s = max([self.longest_wait_s, *waits])
        self.failed += judge.failures(told)
        self.differing += judge.differences(told)
        self.excused = judge.excused

    def read(self, lines: Iterable[str]) -> None:
        """Nothing that was printed may begin a traceback."""
        self.tracebacks += [line for line in lines if "Traceback" in line]

    @property
    def is_good(self) -> bool:
        """Nothing failed, differed, leaked, or was not expected."""
        return not (self.failed or self.differing or self.leaked or self.tracebacks)

    def show(self) -> str:
        """All of it, for somebody who reads."""
        lines = [
            f"{self.asked} requests in {self.seconds:.0f} s, {self.left} of them left early",
            f"longest wait for a next token: {self.longest_wait_s:.1f} s",
            *(f"  {name}: {count}" for name, count in sorted(self.done.items())),
        ]
        for name in ("failed", "differing", "leaked", "tracebacks"):
            found: list[str] = getattr(self, name)
            lines += [f"{name}: {len(found)}", *(f"  {one}" for one in found[:20])]
        lines.append(f"excused ties: {self.excused}")
        return "\n".join([*lines, "good" if self.is_good else "NOT GOOD"])


async def blocks_used(
    session: aiohttp.ClientSession, addresses: Sequence[str]
) -> dict[str, float]:
    """By every node of these that answers: who does not is no living node."""
    used = await asyncio.gather(*(_used(session, address) for address in addresses))
    return {at: one for at, one in zip(addresses, used, strict=True) if one is not None}


async def _used(session: aiohttp.ClientSession, address: str) -> float | None:
    patience = aiohttp.ClientTimeout(total=ANSWER_S)
    try:
        async with session.get(f"http://{address}/metrics", timeout=patience) as said:
            return read_metric(await said.text(), USED)
    except (aiohttp.ClientError, TimeoutError):
        return None
