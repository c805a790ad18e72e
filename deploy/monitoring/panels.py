"""The parts of a dashboard, as data: rows of panels, each with its queries."""

from dataclasses import dataclass
from typing import Literal

RATE = "[$__rate_interval]"
PROXY = 'instance=~"$proxy"'
NODE = 'model=~"$model",instance=~"$node"'
PREFILL, DECODE = f'{NODE},role="prefill"', f'{NODE},role="decode"'
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the legend of its lines."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `unit` is one of Grafana's; `most` is the end of its axis, if fixed."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading, from left to right."""

    title: str
    panels: tuple[Panel, ...]


def rates(metric: str, where: str, by: str) -> Query:
    """How fast a counter grows, for each value of one label."""
    return Query(f"sum by ({by}) (rate({metric}{{{where}}}{RATE}))", f"{{{{{by}}}}}")


def gauge(metric: str, where: str, by: str = "instance") -> Query:
    """The current value, for each value of one label."""
    return Query(f"sum by ({by}) ({metric}{{{where}}})", f"{{{{{by}}}}}")


def share(part: str, whole: str, where: str, by: str = "instance") -> Query:
    """The rate of one counter divided by that of another; nothing while `whole` is still."""
    above, below = (f"sum by ({by}) (rate({one}{{{where}}}{RATE}))" for one in (part, whole))
    return Query(f"{above} / ({below} > 0)", f"{{{{{by}}}}}")


def quantiles(histogram: str, where: str = PROXY) -> tuple[Query, ...]:
    """The values below which 50, 95 and 99 % of the observations lie."""
    buckets = f"sum by (le) (rate({histogram}_bucket{{{where}}}{RATE}))"
    return tuple(
        Query(f"histogram_quantile({value}, {buckets})", name)
        for name, value in QUANTILES.items()
    )


def quantiles_by(
    label: str, histogram: str, where: str, names: tuple[str, ...] = ("p50", "p95")
) -> tuple[Query, ...]:
    """The same for each value of a label."""
    buckets = f"sum by (le, {label}) (rate({histogram}_bucket{{{where}}}{RATE}))"
    return tuple(
        Query(f"histogram_quantile({QUANTILES[name]}, {buckets})", f"{{{{{label}}}}} {name}")
        for name in names
    )
