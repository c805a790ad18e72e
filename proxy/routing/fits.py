"""A straight line through what was measured, kept up to date with every new point."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

FORGETTING = 0.97  # of the weight of all before, at each new point: the last 30 or so count
OUTLIER = 4.0  # times the usual error; what is further off counts as so far
FIRST_SPREAD = 0.5  # of the value itself
LEAST = 1e-6
SPREAD_WEIGHT = 0.1
NOISE = 0.1  # what points are off by anyhow: so much a single one may be trusted


@dataclass(slots=True)
class Fit:
    """`y = w · x`, by recursive least squares with forgetting (Ljung), errors relative to y.

    Robust after Huber: a point far off moves the line no further than one at the edge of what
    is usual. If such points go on coming, the usual error grows, and the line follows. `sure`
    is the variance that each weight begins with, relative to itself.
    """

    weights: list[float]
    sure: float = 1.0
    count: int = 0
    _spread: float = FIRST_SPREAD
    _variance: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with weights that are independent of one another."""
        if not self._variance:
            size = len(self.weights)
            self._variance = [[0.0] * size for _ in range(size)]
            for at, weight in enumerate(self.weights):
                self._variance[at][at] = self.sure * max(weight, LEAST) ** 2

    def at(self, x: Sequence[float]) -> float:
        """What y is to be expected; never less than nothing."""
        total: float = sum(map(mul, self.weights, x))
        return total if total > 0.0 else 0.0

    def learn(self, x: Sequence[float], y: float) -> None:
        """One more point."""
        expected = self.at(x)
        scale = 1.0 / max(expected, y * 0.1, LEAST)
        scaled = [one * scale for one in x]
        error = (y - expected) * scale
        clipped = max(-OUTLIER * self._spread, min(OUTLIER * self._spread, error))
        bounded = min(abs(error), 2 * OUTLIER * self._spread)
        self._spread += SPREAD_WEIGHT * (max(bounded, 0.01) - self._spread)
        self._move(scaled, clipped, surer=clipped == error)
        self.count += 1

    def _move(self, x: Sequence[float], error: float, *, surer: bool) -> None:
        """A point that was clipped shows a direction, and makes nothing surer."""
        weights, variance = self.weights, self._variance
        turned = [sum(map(mul, row, x)) for row in variance]
        bottom = FORGETTING * NOISE**2 + sum(map(mul, x, turned))
        for i, one in enumerate(turned):
            weights[i] = max(0.0, weights[i] + one * error / bottom)
        if not surer:
            return
        for i, one in enumerate(turned):
            pairs = zip(variance[i], turned, strict=True)
            variance[i] = [old - one * other / bottom for old, other in pairs]
        self._forget()

    def _forget(self) -> None:
        """What is old weighs less, but no weight gets less sure than it was at first."""
        weights, variance = self.weights, self._variance
        widest = max(
            row[i] / FORGETTING / max(weights[i], LEAST) ** 2 for i, row in enumerate(variance)
        )
        if widest <= self.sure:
            self._variance = [[one / FORGETTING for one in row] for row in variance]

    def like(self, sure: float) -> "Fit":
        """Another that begins here."""
        return Fit(list(self.weights), sure, 0, self._spread)
