"""Whether spans are made at all: only where somebody said where to, and the SDK is there."""

import logging
import os
from typing import Protocol

from api.trace_context import TraceContext
from proxy.timeline.exchange import Exchange
from proxy.timeline.trace import Trace

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
MISSING = "spans want OpenTelemetry: pip install 'pdserve[otel]'"

logger = logging.getLogger(__name__)


class Tracing(Protocol):
    """Makes spans of requests."""

    def begin(self, exchange: Exchange, context: TraceContext | None) -> Trace | None:
        """What its calls to nodes belong to; `context` is the client's."""

    def end(self, exchange: Exchange) -> None:
        """Nothing more is stamped."""


def tracing(endpoint: str | None, model: str) -> Tracing | None:
    """None: nobody wants spans, and they cost nothing. SystemExit where they cannot be made.

    What was not sent when the process ends is sent then.
    """
    if endpoint is None and not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    try:
        from proxy.observing.spans import exporting
    except ImportError as error:
        if endpoint is not None:
            raise SystemExit(f"--otlp-traces-endpoint: {MISSING}") from error
        logger.warning("%s (or unset OTEL_EXPORTER_OTLP_*)", MISSING)
        return None
    return exporting(endpoint, model)
