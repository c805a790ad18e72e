"""Performance targets, and whether the rows reached them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.gpu.measuring import Measured

STEP, PROMPT, HAND_OVER = "decode step", "prefill", "hand-over 1P1D"
MS = 1e3
Value = Callable[[Measured], float | None]


@dataclass(frozen=True, slots=True)
class Target:
    """A target for rows with this name and these words in their setting."""

    what: str
    row: str
    words: str
    asked: float
    value: Value
    least: bool = True
    unit: str = "%"

    def reached(self, value: float) -> bool:
        """Whether a value reaches the target, which is a lower or an upper bound."""
        return value >= self.asked if self.least else value < self.asked

    def says(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:.1%}" if self.unit == "%" else f"{value * MS:.3g} ms"


@dataclass(frozen=True, slots=True)
class TargetResult:
    """One target's result for one shape; `value` None: there is no such row, or it failed."""

    shape: str
    target: Target
    value: float | None

    def __str__(self) -> str:
        """One line of the table."""
        target = self.target
        asked = ("at least " if target.least else "less than ") + target.says(target.asked)
        found, end = "not measured", ""
        if self.value is not None:
            found = target.says(self.value)
            end = "reached" if target.reached(self.value) else "not reached"
        return f"{self.shape:14}{target.what:62}{asked:>18}{found:>14}  {end}".rstrip()


def _share(one: Measured) -> float | None:
    return one.share


def _seconds(one: Measured) -> float | None:
    return one.seconds


def _host(one: Measured) -> float | None:
    if one.seconds is None or one.host_s is None:
        return None
    return one.host_s / one.seconds


FIRST, MANY = "batch 1,", "batch 64,"
SAMPLED = "2000 tokens, NIXL, checksums sampled"
TARGETS = (
    Target("decode step, batch 1, of the floor", STEP, FIRST, 0.85, _share),
    Target("decode step, batch 64, 2,048 tokens each, of the floor", STEP, MANY, 0.75, _share),
    Target("prefill of 8,192 tokens, of the rate of a product", PROMPT, "8192", 0.6, _share),
    Target(f"hand-over, {SAMPLED}", HAND_OVER, SAMPLED, 0.005, _seconds, False, "s"),
    Target("host time outside graphs, batch 64", STEP, MANY, 0.1, _host, False),
)
"""A prompt's floor is its operations at the rate of a large product, in the same run."""


def verdicts(measured: Sequence[Measured]) -> Iterator[TargetResult]:
    """The results of all targets, for each shape that has a row for any of them."""
    for shape in dict.fromkeys(one.shape for one in measured):
        ours = [one for one in measured if one.shape == shape]
        found = [TargetResult(shape, target, _found(target, ours)) for target in TARGETS]
        if any(_rows_of(verdict.target, ours) for verdict in found):
            yield from found


def _found(target: Target, measured: Sequence[Measured]) -> float | None:
    """The value of the first matching row that did not fail."""
    found = [one for one in _rows_of(target, measured) if not one.failed]
    return target.value(found[0]) if found else None


def _rows_of(target: Target, measured: Sequence[Measured]) -> list[Measured]:
    return [one for one in measured if one.name == target.row and target.words in one.setting]
