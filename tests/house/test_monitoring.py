"""Alerts and dashboard ask for what is exported, and for all of it that matters."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring.grafana_json import COLUMNS, FILE, FIRING, VARIABLES, rendered
from discovery.registration import Role
from node.metrics import NodeMetrics
from proxy.admin.shapes import scrape_targets
from tests.fakes.exported import exported_by_nodes, exported_by_proxies
from tests.fakes.promql import in_braces, named_in
from tests.house.test_docs import metrics_of, of_the_proxy, table

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
METRICS_PAGE = (ROOT / "docs/reference/metrics.md").read_text()
HOWTO = (ROOT / "docs/howto/watch-a-cluster.md").read_text()
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
PANELS: list[dict[str, Any]] = json.loads(FILE.read_text())["panels"]
DRAWN = {panel["title"]: panel for panel in PANELS if panel["type"] != "row"}
LEFT_OUT = {
    "pdserve_kv_tier_stored_total": "the same in bytes says more",
    "pdserve_proxy_last_node_lost_timestamp_seconds": "an alert compares it with the time",
}
OF_PROMETHEUS = {"up": frozenset[str](), "ALERTS": frozenset({"alertname", "alertstate"})}
EVERYWHERE = frozenset({"job", "instance"})
FREE = {"status", "endpoint", "model", "node", "instance", "job", "alertname", "alertstate"}
"""Labels of which no page can have all values."""
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def exported() -> Mapping[str, frozenset[str]]:
    """The labels of all that Prometheus has, by name; a node's target has some of its own."""
    node = {"http_address": "h:1", "role": "decode", "model": "m"}
    (target,) = scrape_targets([node])
    told = EVERYWHERE | target["labels"].keys()
    nodes = {name: labels | told for name, labels in exported_by_nodes().items()}
    proxies = {name: labels | EVERYWHERE for name, labels in exported_by_proxies().items()}
    by_prometheus = {name: labels | told for name, labels in OF_PROMETHEUS.items()}
    return {**nodes, **proxies, **by_prometheus}


def queries() -> Iterator[tuple[str, str]]:
    """Every expression of dashboard and alerts, and what is said of its labels."""
    for panel in DRAWN.values():
        yield from ((one["expr"], one["legendFormat"]) for one in panel["targets"])
    for rule in RULES.values():
        yield rule["expr"], " ".join(rule["annotations"].values())
    for _, query in VARIABLES.values():
        asked = query.removeprefix("label_values(").removesuffix(")")
        selector, _, label = asked.rpartition(", ")
        yield selector, f"{{{{{label}}}}}"
    yield FIRING, "{{alertname}} {{instance}}"


QUERIES = sorted(set(queries()))
EXPORTED = exported()


@pytest.mark.parametrize(("expression", "said"), QUERIES)
def test_metrics_and_labels_that_are_asked_for_are_exported(expression: str, said: str) -> None:
    named = named_in(expression)
    assert named.wanted, expression
    for metric, labels in named.wanted.items():
        assert metric in EXPORTED
        assert labels <= EXPORTED[metric], metric
    known = frozenset.union(*(EXPORTED[metric] for metric in named.wanted))
    assert named.grouped <= known
    left = named.grouped if "by (" in expression else known
    assert set(in_braces(said)) - {"value"} <= left


def of_page() -> Mapping[str, str]:
    """What the reference says of each metric."""
    rows = [*table(METRICS_PAGE, "Of a node"), *table(METRICS_PAGE, "Of the proxy")]
    return {row["metric"].strip("`"): row["meaning"] for row in rows}


@pytest.mark.parametrize("expression", sorted({expression for expression, _ in QUERIES}))
def test_values_of_labels_are_those_of_the_reference(expression: str) -> None:
    meanings = of_page()
    stages = {row["stage"].strip("`") for row in table(METRICS_PAGE, "Stages")}
    roles = {role.name.lower() for role in Role}
    for metric, label, value in named_in(expression).values:
        known = {"stage": stages, "role": roles}.get(label)
        if known is None and label not in FREE:
            known = set(re.findall(r"`(\w+)`", meanings[SUFFIX.sub("", metric)]))
        assert known is None or value in known, (metric, label, value)


def test_every_metric_of_the_reference_is_drawn_or_left_out_for_a_reason() -> None:
    panels = [one["expr"] for panel in DRAWN.values() for one in panel["targets"]]
    drawn = {SUFFIX.sub("", metric) for each in panels for metric in named_in(each).wanted}
    assert of_page().keys() - drawn == LEFT_OUT.keys()
    assert all(LEFT_OUT.values())


def test_the_dashboard_is_made_of_its_panels() -> None:
    """Else: `python -m deploy.monitoring`."""
    assert FILE.read_text() == rendered()


def test_panels_have_a_title_a_description_and_a_unit() -> None:
    assert len(DRAWN) == len([panel for panel in PANELS if panel["type"] != "row"])
    for title, panel in DRAWN.items():
        assert re.match(r"[A-Z].*[^.]$", title)
        assert re.match(r"[A-Z0-9`].{15,100}\.$", panel["description"]), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["targets"], title


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for one, two in combinations([panel["gridPos"] for panel in PANELS], 2):
        beside = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        below = one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]
        assert beside or below, (one, two)
    assert all(0 <= each["gridPos"]["x"] <= COLUMNS - each["gridPos"]["w"] for each in PANELS)


@pytest.mark.parametrize("name", RULES)
def test_rules_say_when_how_bad_and_what_to_look_at(name: str) -> None:
    rule = RULES[name]
    assert name.startswith("Pdserve")
    assert re.fullmatch(r"\d+[sm]", rule["for"])
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description"}
    looked_at = r"/instances|/status|/requests|/health|pdserve status|`[A-Z]\w+|docs/|\blogs?\b"
    assert re.search(looked_at, rule["annotations"]["description"])


def test_each_alert_has_its_row_on_the_page() -> None:
    told = {row["alert"].strip("`"): row for row in table(HOWTO, "What each alert means")}
    assert list(told) == list(RULES)
    for name, row in told.items():
        assert row["severity"] == RULES[name]["labels"]["severity"], name


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_points_at_is_there(name: str) -> None:
    said = RULES[name]["annotations"]["description"]
    for page in re.findall(r"docs/[\w/-]+\.md", said):
        assert (ROOT / page).exists()
    rows = {panel["title"] for panel in PANELS if panel["type"] == "row"}
    for title in re.findall(r"`([A-Z][^`/_]+)`", said):
        assert title in DRAWN.keys() | rows, title


def test_what_is_scraped_is_where_the_proxy_has_it() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert [one["job_name"] for one in config["scrape_configs"]] == [
        "pdserve-proxy",
        "pdserve-nodes",
    ]
    (found,) = config["scrape_configs"][1]["http_sd_configs"]
    assert found["url"].endswith("/metrics/targets")
    assert config["rule_files"] == ["alerts.yml"]


def test_all_that_is_exported_was_made_to_count() -> None:
    """Or labels would go unseen, and with them who asks for others."""
    for registry, names in (
        (NodeMetrics().registry, exported_by_nodes()),
        (of_the_proxy(), exported_by_proxies()),
    ):
        counted = {SUFFIX.sub("", name) for name in names}
        assert {name for name, _ in metrics_of(registry)} <= counted
