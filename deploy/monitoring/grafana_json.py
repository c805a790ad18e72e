"""Rows of panels become the JSON that Grafana 11 and later import."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.monitoring.kv_rows import KV, TIERS
from deploy.monitoring.node_rows import DECODE_NODES, PREFILL_NODES
from deploy.monitoring.panels import Panel, Row
from deploy.monitoring.service_rows import ADMISSION, CLIENTS, ROUTING, TIME

FILE = Path(__file__).parent / "grafana" / "pdserve.json"
ROWS = (CLIENTS, TIME, PREFILL_NODES, DECODE_NODES, KV, TIERS, ROUTING, ADMISSION)
SCHEMA = 39  # Grafana 11.0's
COLUMNS = 24
SIZES = {"timeseries": (8, 8), "stat": (6, 4)}  # width and height
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES = {
    "proxy": ("Proxy", "label_values(pdserve_proxy_tries_total, instance)"),
    "model": ("Model", "label_values(pdserve_requests_running, model)"),
    "node": ("Node", 'label_values(pdserve_requests_running{model=~"$model"}, instance)'),
}
FIRING = 'ALERTS{alertname=~"Pdserve.*",alertstate="firing"}'
LINES = {
    "drawStyle": "line",
    "fillOpacity": 8,
    "lineWidth": 1,
    "showPoints": "never",
    "spanNulls": False,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {
            "calcs": [],
            "displayMode": "list",
            "placement": "bottom",
            "showLegend": True,
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value",
    },
}
HEADER: dict[str, Any] = {
    "uid": "pdserve",
    "title": "pdserve",
    "description": "A cluster of prefill and decode nodes behind its proxies.",
    "tags": ["pdserve"],
    "schemaVersion": SCHEMA,
    "version": 1,
    "editable": True,
    "graphTooltip": 1,
    "refresh": "30s",
    "time": {"from": "now-1h", "to": "now"},
    "timepicker": {},
    "timezone": "browser",
    "links": [],
}


def rendered() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def dashboard() -> dict[str, Any]:
    """All of it."""
    variables = [_datasource(), *(_variable(name) for name in VARIABLES)]
    return {
        **HEADER,
        "annotations": {"list": [_firing_alerts()]},
        "templating": {"list": variables},
        "panels": list(_placed(ROWS)),
    }


def _placed(rows: tuple[Row, ...]) -> Iterator[dict[str, Any]]:
    """From left to right and from top to bottom; ids in the same order."""
    number, top = 1, 0
    for row in rows:
        yield _heading(row, number, top)
        number, top, left, height = number + 1, top + 1, 0, 0
        for panel in row.panels:
            width, tall = SIZES[panel.kind]
            if left + width > COLUMNS or (left and tall != height):
                top, left = top + height, 0
            height = tall
            place = {"x": left, "y": top, "w": width, "h": height}
            yield _panel(panel, number, place)
            number, left = number + 1, left + width
        top += height


def _heading(row: Row, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    kind = {"id": number, "type": "row", "title": row.title, "gridPos": place}
    return {**kind, "collapsed": False, "panels": []}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    limits = {"min": 0} if panel.most is None else {"min": 0, "max": panel.most}
    custom = {"custom": LINES} if panel.kind == "timeseries" else {}
    defaults = {
        "unit": panel.unit,
        **limits,
        "color": {"mode": "palette-classic"},
        **custom,
    }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": OPTIONS[panel.kind],
        "targets": list(_targets(panel)),
    }


def _targets(panel: Panel) -> Iterator[dict[str, Any]]:
    for index, query in enumerate(panel.queries):
        yield {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend,
            "range": True,
        }


def _datasource() -> dict[str, Any]:
    """Which Prometheus: chosen when it is imported, and later in the dashboard."""
    named = {"name": "datasource", "label": "Prometheus", "type": "datasource"}
    return {**named, "query": "prometheus", "regex": "", "refresh": 1, "hide": 0}


def _variable(name: str) -> dict[str, Any]:
    """One of what Prometheus knows, several or all."""
    label, query = VARIABLES[name]
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"qryType": 5, "query": query, "refId": f"variable-{name}"},
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "hide": 0,
    }


def _firing_alerts() -> dict[str, Any]:
    """A mark in every panel where one of our alerts fires."""
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": FIRING,
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}}",
        "step": "60s",
    }
