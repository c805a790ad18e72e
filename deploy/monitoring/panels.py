"""What a dashboard is made of, as data: rows of panels, each with its queries."""

from dataclasses import dataclass
from typing import Literal

RATE = "[$__rate_interval]"
PROXY = 'instance=~"$proxy"'
NODE = 'model=~"$model",instance=~"$node"'
PREFILL, DECODE = f'{NODE},role="prefill"', f'{NODE},role="decode"'
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and what each of its lines is called."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. `unit` is one of Grafana's; `most`: where its axis ends, if it does."""

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
    """A number as it stands, for each value of one label."""
    return Query(f"sum by ({by}) ({metric}{{{where}}})", f"{{{{{by}}}}}")


def share(part: str, whole: str, where: str, by: str = "instance") -> Query:
    """One counter beside another, both as they grow now; nothing where neither does."""
    above, below = (f"sum by ({by}) (rate({one}{{{where}}}{RATE}))" for one in (part, whole))
    return Query(f"{above} / ({below} > 0)", f"{{{{{by}}}}}")


def quantiles(histogram: str, where: str = PROXY) -> tuple[Query, ...]:
    """Half, 95 and 99 of a hundred are faster than this."""
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
