"""A linear fit through measurements, updated with every new point."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

FORGETTING = 0.97  # weight of all earlier points at each new one: about the last 30 count
OUTLIER = 4.0  # times the usual error; errors beyond that are clipped to it
FIRST_SPREAD = 0.5  # of the value itself
LEAST = 1e-6
SPREAD_WEIGHT = 0.1
NOISE = 0.1  # usual relative error of a point: limits how much a single one is trusted
# of a prediction: as known by the points that are not forgotten
SUREST = (1 - FORGETTING) * NOISE**2


@dataclass(slots=True)
class LinearFit:
    """`y = w · x`, by recursive least squares with forgetting (Ljung), errors relative to y.

    Robust after Huber: an outlier moves the line no further than a point at the edge of the
    usual range. If such points keep coming, the usual error grows, and the line follows. `sure`
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
        """The expected y; never negative."""
        total: float = sum(map(mul, self.weights, x))
        return total if total > 0.0 else 0.0

    def learn(self, x: Sequence[float], y: float) -> None:
        """Add a point."""
        expected = self.at(x)
        scale = 1.0 / max(expected, y * 0.1, LEAST)
        scaled = [one * scale for one in x]
        error = (y - expected) * scale
        clipped = max(-OUTLIER * self._spread, min(OUTLIER * self._spread, error))
        bounded = min(abs(error), 2 * OUTLIER * self._spread)
        self._spread += SPREAD_WEIGHT * (max(bounded, 0.01) - self._spread)
        sure = SUREST * (expected * scale) ** 2
        self._move(scaled, clipped, sure, surer=clipped == error)
        self.count += 1

    def _move(self, x: Sequence[float], error: float, sure: float, *, surer: bool) -> None:
        """Move the weights by a point. A clipped point shows a direction but makes nothing
        surer; nor does any point once a prediction is as certain as `sure`, so that the last
        points always count.
        """
        weights, variance = self.weights, self._variance
        turned = [sum(map(mul, row, x)) for row in variance]
        if (along := sum(map(mul, x, turned))) <= 0.0:
            return  # the point says nothing
        trusted, noise = max(along, sure), FORGETTING * NOISE**2
        step = error * trusted / along / (noise + trusted)
        self.weights = [old + one * step for old, one in zip(weights, turned, strict=True)]
        if surer and along > sure:
            for i, one in enumerate(turned):
                pairs = zip(variance[i], turned, strict=True)
                variance[i] = [old - one * other / (noise + along) for old, other in pairs]
        if min(self.weights) < 0.0:
            self._raise()
        if surer:
            self._forget()

    def _raise(self) -> None:
        """Raise negative weights to 0, to the likeliest values by what is known.

        A weight that becomes 0 changes the others as far as the points have shown only their
        sum.
        """
        weights, rows = self.weights, self._variance
        for _ in weights:
            at = weights.index(min(weights))
            least, row = weights[at], rows[at]
            if least >= 0.0 or row[at] <= 0.0:
                break
            shares = [one / row[at] for one in row]
            weights = [old - one * least for old, one in zip(weights, shares, strict=True)]
            rows = [
                [old - share * one for old, one in zip(other, row, strict=True)]
                for other, share in zip(rows, shares, strict=True)
            ]
        self.weights = [max(0.0, one) for one in weights]

    def _forget(self) -> None:
        """Old points weigh less, but no weight's variance grows beyond its first."""
        weights, variance = self.weights, self._variance
        widest = max(
            row[i] / FORGETTING / max(weights[i], LEAST) ** 2 for i, row in enumerate(variance)
        )
        if widest <= self.sure:
            self._variance = [[one / FORGETTING for one in row] for row in variance]

    def like(self, sure: float) -> "LinearFit":
        """A new fit that begins with these weights."""
        return LinearFit(list(self.weights), sure, 0, self._spread)
