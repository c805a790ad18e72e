"""What an operator imports to watch a cluster; docs/howto/watch-a-cluster.md says how.

prometheus.yml and alerts.yml are written by hand. The dashboard, grafana/pdserve.json, is made
by `python -m deploy.monitoring` of the panels that are described here, as data.
"""
