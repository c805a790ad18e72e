"""`python -m deploy.monitoring` writes the dashboard's file."""

from deploy.monitoring.grafana_json import FILE, rendered

FILE.parent.mkdir(exist_ok=True)
FILE.write_text(rendered())
