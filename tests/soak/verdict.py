"""What has come of a run in which much was hurt."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.e2e.cluster import USED, read_metric
from tests.soak.clients import Told
from tests.soak.questions import Judge, Question

ANSWER_S = 0.5


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

    def judge(
        self,
        folder: Path,
        asked: Sequence[Question],
        expected: list[list[list[int]]],
        told: Mapping[int, Told],
    ) -> None:
        """Compare what was told with what one engine says; who left early has a part of it."""
        judge = Judge(folder)
        for question, wanted in zip(asked, expected, strict=True):
            one = told.get(question.number)
            if one is None:
                continue
            self.left += one.left
            self.longest_wait_s = max(self.longest_wait_s, one.longest_wait_s)
            if one.failure is not None:
                self.failed.append(f"{question.number}: {one.failure}")
                continue
            for index, (whole, said) in enumerate(zip(wanted, one.choices, strict=True)):
                fair = whole[: len(said)] if one.left else whole
                if judge.differs(question, fair, said):
                    self.differing.append(f"{question.number}.{index}: {fair} is {said}")
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
