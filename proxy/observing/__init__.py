"""Observability: metrics, log lines, timelines and OpenTelemetry spans of requests."""
