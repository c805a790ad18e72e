"""Enables tracing if an OTLP endpoint is set and OpenTelemetry's SDK is installed."""

import logging
import os
from typing import Protocol
from urllib.parse import urlsplit

from api.trace_context import TraceContext
from proxy.timeline.exchange import HttpExchange
from proxy.timeline.trace import Trace

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
MISSING = "spans want OpenTelemetry: pip install 'pdserve[otel]'"

logger = logging.getLogger(__name__)


class Tracing(Protocol):
    """Creates spans of requests."""

    def begin(self, exchange: HttpExchange, context: TraceContext | None) -> Trace | None:
        """Begin a span; returns the trace of its calls to nodes. `context` is the client's."""

    def end(self, exchange: HttpExchange) -> None:
        """End the request's span."""


def build_tracing(endpoint: str | None, model: str) -> Tracing | None:
    """None without an endpoint; SystemExit if that is no URL or the SDK is missing.

    Spans that are still buffered when the process ends are exported then.
    """
    if endpoint is not None and not _is_url(endpoint):
        raise SystemExit(
            f"--otlp-traces-endpoint is {endpoint!r}, which is no http:// or https:// URL"
        )
    if endpoint is None and not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    try:
        from proxy.observing.spans import otlp_spans
    except ImportError as error:
        if endpoint is not None:
            raise SystemExit(f"--otlp-traces-endpoint: {MISSING}") from error
        logger.warning("%s (or unset OTEL_EXPORTER_OTLP_*)", MISSING)
        return None
    return otlp_spans(endpoint, model)


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # no port is that
        return False
