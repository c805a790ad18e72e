"""Wraps the pipeline: each request gets a timeline, metrics and one log line."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from api.generator import WHOLE, Event, Leg, PooledEvent, Tap, TokenEvent
from engine.request import PoolingRequest, Request
from proxy.errors import ProxyError, without_frames
from proxy.observing.metrics import ProxyMetrics
from proxy.observing.timeline_store import MOST_KEPT, TimelineStore
from proxy.observing.tracing import Tracing
from proxy.pipeline import Pipeline
from proxy.pooling import PoolingPipeline
from proxy.timeline.choice import CLOSED, FAILED, POOLED, ChoiceTimeline
from proxy.timeline.exchange import HttpExchange, current

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObservedPipeline:
    """A Generator and an Embedder; passes all events on unchanged."""

    pipeline: Pipeline
    metrics: ProxyMetrics
    model: str
    pooling: PoolingPipeline
    timelines: TimelineStore = field(default_factory=lambda: TimelineStore(MOST_KEPT))
    tracing: Tracing | None = None

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        """See Generator."""
        clock, exchange = self.pipeline.clock, current.get() or HttpExchange(0.0)
        timeline = ChoiceTimeline(request, clock(), exchange.trace)
        leads = exchange.received and not exchange.choices
        exchange.choices.append(timeline)
        self.metrics.requests_in_flight += 1
        try:
            async with aclosing(self.pipeline.stream(request, leg, tap, timeline)) as events:
                async for event in events:
                    if isinstance(event, TokenEvent) and (
                        event.finish is not None or timeline.first_at is None
                    ):
                        timeline.record_tokens(event, clock())
                    yield event
        except Exception as failure:
            timeline.failure = str(failure) or repr(failure)
            if isinstance(failure, ProxyError):
                without_frames(failure)
            raise
        finally:
            timeline.ended_at = clock()
            self.metrics.requests_in_flight -= 1
            if leads:
                self.metrics.record_tokenization(
                    (exchange.tokenized or timeline.begun) - exchange.received
                )
            self.metrics.record_choice(timeline)
            logger.info("%s", timeline.log_line(self._name(request), exchange.endpoint))

    def _name(self, request: Request | PoolingRequest) -> str:
        """The adapter's, or the model's own if the request says which model it is for."""
        if isinstance(request, Request) and request.adapter is not None:
            return request.adapter
        return (request.model and request.model[0]) or self.model

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        """See Embedder."""
        clock, count = self.pipeline.clock, len(requests)
        exchange = current.get() or HttpExchange(0.0)
        begun, ending, reason = clock(), CLOSED, ""
        self.metrics.requests_in_flight += count
        try:
            pooled = await self.pooling.embed(requests)
            ending = POOLED
            return pooled
        except Exception as failure:
            ending, reason = FAILED, f" reason={str(failure)!r}"
            if isinstance(failure, ProxyError):
                without_frames(failure)
            raise
        finally:
            tokens, took_s = sum(len(one.prompt) for one in requests), clock() - begun
            self.metrics.requests_in_flight -= count
            model = self._name(requests[0])
            self.metrics.record_pooled(count, tokens, took_s, ending)
            logger.info(
                "request_id=%s endpoint=%s model=%s prompts=%d prompt_tokens=%d finish=%s "
                "total_s=%.4f%s",
                *(requests[0].request_id, exchange.endpoint, model, count, tokens),
                *(ending, took_s, reason),
            )
