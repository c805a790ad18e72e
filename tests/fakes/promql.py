"""What a Prometheus expression names: metrics, labels, and values that labels are to have."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import promql_parser as promql

VARIABLES = {
    "$__rate_interval": "1m",
    **dict.fromkeys(("$proxy", "$node", "$model"), ".*"),
}
"""What Grafana puts in their place."""


@dataclass(slots=True)
class Named:
    """`wanted` are the labels by which series are chosen, `values` those that are spelled out.

    `grouped` are the labels that aggregations and matchings name.
    """

    wanted: dict[str, set[str]] = field(default_factory=dict)  # by metric
    values: set[tuple[str, str, str]] = field(default_factory=set)  # metric, label, value
    grouped: set[str] = field(default_factory=set)

    def visit(self, node: promql.Expr) -> None:
        """One part of an expression."""
        match node:
            case promql.VectorSelector():
                self._select(node)
            case promql.AggregateExpr(modifier=promql.AggModifier() as by):
                self.grouped.update(by.labels)
            case promql.BinaryExpr(modifier=promql.BinModifier() as how):
                self.grouped.update(how.matching.labels if how.matching else ())
                self.grouped.update(how.group_labels or ())

    def _select(self, node: promql.VectorSelector) -> None:
        assert node.name is not None, "a selector without a metric"
        wanted = self.wanted.setdefault(node.name, set())
        for one in node.matchers.matchers:
            wanted.add(one.name)
            spelled = one.value.split("|") if str(one.op).endswith("Re") else [one.value]
            self.values.update((node.name, one.name, value) for value in spelled)


def named_in(expression: str) -> Named:
    """Raises ValueError for what is no expression."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    found = Named()
    promql.walk(promql.parse(expression), pre_visit=found.visit)
    return found


def in_braces(template: str) -> Iterator[str]:
    """The labels of `{{label}}`, as legends have them, and of `{{ $labels.label }}`."""
    for part in template.split("{{")[1:]:
        name = part.partition("}}")[0].strip().removeprefix("$labels.")
        if not name.startswith("$value"):
            yield name
