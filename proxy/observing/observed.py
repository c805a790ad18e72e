"""The pipeline as the door sees it: each request is counted, timed and told in one line."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from api.generator import WHOLE, Event, Leg, PooledEvent, Tap, TokenEvent
from engine.request import PoolingRequest, Request
from proxy.observing.kept import MOST_KEPT, KeptTimelines
from proxy.observing.metrics import ProxyMetrics
from proxy.observing.tracing import Tracing
from proxy.pipeline import Pipeline
from proxy.pooling import PoolingPipeline
from proxy.timeline.exchange import Exchange, current
from proxy.timeline.story import CLOSED, FAILED, POOLED, Story

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Observed:
    """A Generator and an Embedder that adds nothing to what is said and leaves nothing out."""

    pipeline: Pipeline
    metrics: ProxyMetrics
    model: str
    pooling: PoolingPipeline
    kept: KeptTimelines = field(default_factory=lambda: KeptTimelines(MOST_KEPT))
    tracing: Tracing | None = None

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        """See Generator."""
        clock, exchange = self.pipeline.clock, current.get() or Exchange(0.0)
        story = Story(request, clock(), exchange.trace)
        leads = exchange.received and not exchange.stories
        exchange.stories.append(story)
        self.metrics.requests_in_flight += 1
        try:
            async with aclosing(self.pipeline.stream(request, leg, tap, story)) as events:
                async for event in events:
                    if isinstance(event, TokenEvent) and (
                        event.finish is not None or story.first_at is None
                    ):
                        story.told(event, clock())
                    yield event
        except Exception as failure:
            story.failure = str(failure) or repr(failure)
            raise
        finally:
            story.ended_at = clock()
            self.metrics.requests_in_flight -= 1
            if leads:
                self.metrics.tokenized((exchange.tokenized or story.begun) - exchange.received)
            self.metrics.book(story)
            logger.info("%s", story.line(self._name(request), exchange.endpoint))

    def _name(self, request: Request | PoolingRequest) -> str:
        """The model's own, where the request says which one it is for."""
        return (request.model and request.model[0]) or self.model

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        """See Embedder."""
        clock, count = self.pipeline.clock, len(requests)
        exchange = current.get() or Exchange(0.0)
        begun, ending, reason = clock(), CLOSED, ""
        self.metrics.requests_in_flight += count
        try:
            pooled = await self.pooling.embed(requests)
            ending = POOLED
            return pooled
        except Exception as failure:
            ending, reason = FAILED, f" reason={str(failure)!r}"
            raise
        finally:
            tokens, took_s = sum(len(one.prompt) for one in requests), clock() - begun
            self.metrics.requests_in_flight -= count
            model = self._name(requests[0])
            self.metrics.book_pooled(count, tokens, took_s, ending)
            logger.info(
                "request_id=%s endpoint=%s model=%s prompts=%d prompt_tokens=%d finish=%s "
                "total_s=%.4f%s",
                *(requests[0].request_id, exchange.endpoint, model, count, tokens),
                *(ending, took_s, reason),
            )
